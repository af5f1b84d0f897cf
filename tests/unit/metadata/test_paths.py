from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.metadata.errors import InvalidPath
from anabranch.metadata.paths import below, check_path, check_prefix, name, parent, upwards

segments = st.text(alphabet="ab.-%é 🛶", min_size=1, max_size=5).filter(lambda s: s not in (".", ".."))
paths = st.lists(segments, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))


@given(paths)
def test_a_path_is_its_parent_and_its_name(path: str) -> None:
    assert check_path(path) == path
    assert below(parent(path)) + name(path) == path


@given(paths)
def test_going_upwards_ends_at_the_root_and_names_every_level(path: str) -> None:
    levels = list(upwards(path))
    assert levels[0] == path
    assert levels[-1] == "/"
    assert len(levels) == path.count("/") + 1
    assert all(parent(low) == high for low, high in pairwise(levels))


def test_the_root_is_a_prefix_and_not_a_record() -> None:
    assert check_prefix("/") == "/"
    with pytest.raises(InvalidPath):
        check_path("/")


def test_a_refusal_says_what_is_wrong_with_the_path() -> None:
    with pytest.raises(InvalidPath, match="empty segment"):
        check_path("/a//b")
    with pytest.raises(InvalidPath, match="limit 4096"):
        check_path("/" + "é" * 2048)
