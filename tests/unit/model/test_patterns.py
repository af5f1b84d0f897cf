"""Patterns for names say what Python's say, and cannot be made to run for ever."""

from __future__ import annotations

import re
import time
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.patterns import InvalidPattern, NamePattern

ATOMS = st.sampled_from(
    ["a", "b", "-", "/", ".", r"\.", r"\d", r"\w", r"\S", "[ab]", "[^a]", "[a-c-]", "[]a]", "^", "$", "7"]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,}", "*?", "{0}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"(?P<x>{text})" if "?P<" not in text else text),
    ),
    max_leaves=8,
)
NAMES = st.text("abc-/.7", max_size=8)


@given(PATTERNS, st.lists(NAMES, max_size=10))
def test_a_pattern_matches_what_pythons_does(text: str, names: list[str]) -> None:
    try:
        wanted = re.compile(text)
    except re.error:
        return
    pattern = NamePattern(text)
    for name in names:
        # Python's $ also holds before a newline at the end, of which names have none.
        assert pattern.matches(name) == (wanted.fullmatch(name) is not None), (text, name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (r"\Qa.b*\E.*", "a.b*c"),
        (r"public/default/orders-\d{1,3}", "public/default/orders-42"),
        (r"(?<region>eu|us)-.+", "eu-1"),
        (r"\x61\u0062", "ab"),
        ("", ""),
        ("ä.*", "äöü"),
    ],
)
def test_what_other_languages_write_is_read(text: str, name: str) -> None:
    assert NamePattern(text).matches(name)
    assert not NamePattern(text).matches("/" + name)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "(",
            ")",
            "a)",
            "[a",
            "[b-a]",
            "*a",
            "a**",
            "a{3,2}",
            "a{",
            "a++",
            "(?=a)",
            "(?!a)",
            "(?<=a)b",
            "(?i)a",
        ),
        *(r"(a)\1", r"\bword", "\\", r"\x6", "[[:alpha:]]", "[a&&b]", "(a{999}){999}", "(" * 20_000),
    ],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidPattern):
        NamePattern(text)


@pytest.mark.parametrize(
    "text",
    ["(a+)+b", "(a|a)*b", "(a|aa)+b", ".*.*.*.*.*.*.*.*.*.*x", "(.*a){20}b", "(a*)*b", "([ab]*c?){30}x"],
)
def test_no_pattern_runs_for_ever(text: str) -> None:
    pattern = NamePattern(text)
    before = time.process_time()
    assert not pattern.matches("a" * 250)
    assert time.process_time() - before < 1.0


def test_what_is_remembered_of_many_names_is_bounded() -> None:
    # Which of the last ten characters were an a: a state for each way they can be.
    pattern = NamePattern(r".*a.{10}")
    for number in range(3000):
        bits = f"{number:011b}".replace("0", "b").replace("1", "a")
        assert pattern.matches(bits) == (bits[-11] == "a")


def test_a_pattern_that_is_never_twice_in_the_same_state_is_given_up() -> None:
    pattern = NamePattern("[ab]*a[ab]{300}")
    names = ["".join(Random(seed).choices("ab", k=1000)) for seed in range(100)]
    pattern.begin(len(names))
    before = time.process_time()
    with pytest.raises(InvalidPattern, match="takes too long"):
        [pattern.matches(name) for name in names]
    assert time.process_time() - before < 1.0  # All of them would take twenty seconds.
    pattern.begin(1)
    assert not pattern.matches("b" * 1000)
