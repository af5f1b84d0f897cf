"""Lines from a file descriptor, however its bytes come, and the keys in them."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.messages.line_source import LINE_BYTES_MAX, Lines, keying
from anabranch.cli.messages.signals import run
from anabranch.cli.parsing.options import UsageError


def read(*pieces: bytes) -> list[bytes]:
    """What `Lines` makes of pieces that are read one after the other."""
    found: list[bytes] = []

    async def go() -> int:
        reader, writer = os.pipe()
        lines = Lines(reader)
        try:
            for piece in pieces:
                os.write(writer, piece)
        finally:
            os.close(writer)
        while some := await lines.next():
            assert lines.number == len(found) + 1
            found.extend(some)
        assert lines.bytes_read == sum(map(len, pieces))
        assert await lines.next() == []
        os.close(reader)
        return 0

    assert run(go()) == 0
    return found


def test_lines_lose_their_ends_and_the_last_needs_none() -> None:
    assert read(b"one\ntw", b"o\r\n\nthree") == [b"one", b"two", b"", b"three"]
    assert read() == []
    assert read(b"\n") == [b""]


@given(st.lists(st.text(alphabet="ab\n", max_size=6).map(str.encode), max_size=6))
def test_pieces_do_not_matter(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    lines = whole.split(b"\n")
    assert read(*pieces) == (lines if lines[-1] else lines[:-1])


def test_one_key_is_that_of_every_line() -> None:
    assert list(keying("k", None, None)([b"a", b"b"], 1)) == [("k", b"a"), ("k", b"b")]
    assert list(keying(None, None, None)([b"a"], 1)) == [(None, b"a")]


@pytest.mark.parametrize(
    ("separator", "line", "found"),
    [
        (":", b"k:v:w", ("k", b"v:w")),
        (r"\t", b"k\tv", ("k", b"v")),
        ("\t", b"k\tv", ("k", b"v")),
        ("::", b":k::v", (":k", b"v")),
        ("→", "k→v".encode(), ("k", b"v")),
        ("=>", b"=>v", ("", b"v")),
    ],
)
def test_a_separator_parts_key_and_value(separator: str, line: bytes, found: tuple[str, bytes]) -> None:
    assert list(keying(None, separator, None)([line], 1)) == [found]


@pytest.mark.parametrize(
    ("line", "key"), [(b'{"k": "x"}', "x"), (b'{"k": 7, "v": [1]}', "7"), (b'{"k": true}', "true")]
)
def test_a_field_of_a_json_object_is_its_key(line: bytes, key: str) -> None:
    assert list(keying(None, None, "k")([line], 1)) == [(key, line)]


@pytest.mark.parametrize(
    ("separator", "field", "line", "message"),
    [
        (":", None, b"oops", "line 12 has no ':'"),
        (":", None, b"\xff:x", "line 12 is not UTF-8"),
        (None, "k", b"oops", "line 12 is no JSON object"),
        (None, "k", b"[1]", "line 12 is no JSON object"),
        (None, "k", b'{"\xff": 1}', "line 12 is no JSON object"),
        (None, "k", b"{}", "line 12 has no field 'k'"),
        (None, "k", b'{"k": {}}', "line 12: the field 'k' is neither text nor number"),
        (None, "k", b'{"k": null}', "line 12: the field 'k' is neither text nor number"),
    ],
)
def test_lines_that_are_wrong_are_named(
    separator: str | None, field: str | None, line: bytes, message: str
) -> None:
    good = b'k:{"k": "x"}' if field is None else b'{"k": "x"}'
    with pytest.raises(UsageError, match=message):
        list(keying(None, separator, field)([good, good, line], 10))


def test_what_is_no_file_of_lines_is_refused() -> None:
    async def go() -> int:
        reader = os.memfd_create("zeros")
        os.truncate(reader, LINE_BYTES_MAX + 1_000_000)
        lines = Lines(reader)
        try:
            with pytest.raises(UsageError, match="line 1 is over 64 MB"):
                await lines.next()
        finally:
            os.close(reader)
        return 0

    run(go())
