"""What may be answered without asking the store, and what must not be."""

from __future__ import annotations

from anabranch.metadata.kept import LIST_NAMES_MAX, UNKNOWN, ReadCache
from anabranch.metadata.port import Versioned


def node(value: bytes, version: int = 0) -> Versioned:
    return Versioned(value, version, 1, 1)


def test_what_was_read_is_known_until_it_changes() -> None:
    kept = ReadCache()
    assert kept.node("/a") is UNKNOWN
    kept.found("/a", node(b"one"))
    kept.found("/b", None)
    assert kept.node("/a") == node(b"one")
    assert kept.node("/b") is None
    kept.changed({"/a": node(b"two", 1), "/b": node(b"made")})
    assert kept.node("/a") == node(b"two", 1)
    assert kept.node("/b") == node(b"made")
    kept.changed({"/a": None})
    assert kept.node("/a") is None


def test_a_path_that_an_operation_on_its_way_may_change_is_not_known() -> None:
    kept = ReadCache()
    kept.found("/a/b", node(b"one"))
    kept.begin("/a/b")
    kept.begin("/a/b")
    kept.end("/a/b")
    assert kept.node("/a/b") is UNKNOWN
    kept.end("/a/b")
    assert kept.node("/a/b") == node(b"one")


def test_a_write_below_may_make_a_missing_parent_and_leaves_one_that_is_there() -> None:
    kept = ReadCache()
    kept.found("/there", node(b"record"))
    kept.found("/missing", None)
    for path in ("/there/deep/child", "/missing/deep/child"):
        kept.begin(path)
    assert kept.node("/there") == node(b"record")
    assert kept.node("/missing") is UNKNOWN


def test_an_operation_that_may_change_anything_hides_everything() -> None:
    kept = ReadCache()
    kept.found("/a", node(b"one"))
    kept.listed("/", ["a"])
    kept.begin("/")
    assert kept.node("/a") is UNKNOWN
    assert kept.children("/") is UNKNOWN
    kept.end("/")
    assert kept.node("/a") == node(b"one")
    assert kept.children("/") == ["a"]


def test_a_list_of_children_ends_with_a_birth_or_a_death_among_them_and_not_with_a_change() -> None:
    kept = ReadCache()
    kept.listed("/f", ["a", "b"])
    kept.changed({"/f/a": node(b"x", 3), "/f/a/below": node(b"")})
    assert kept.children("/f") == ["a", "b"]
    kept.begin("/f/a/below")
    assert kept.children("/f") is UNKNOWN
    kept.end("/f/a/below")
    kept.changed({"/f/c": node(b"")})
    assert kept.children("/f") is UNKNOWN
    kept.listed("/f", ["a", "b", "c"])
    kept.changed({"/f/b": None})
    assert kept.children("/f") is UNKNOWN


def test_a_list_ends_with_a_node_that_one_commit_created_and_changed() -> None:
    kept = ReadCache()
    kept.listed("/f", [])
    kept.changed({"/f/a": node(b"x", 1)})
    assert kept.children("/f") is UNKNOWN


def test_a_list_handed_out_is_the_readers_own() -> None:
    kept = ReadCache()
    kept.listed("/f", ["a"])
    first = kept.children("/f")
    assert isinstance(first, list)
    first.append("b")
    assert kept.children("/f") == ["a"]


def test_long_lists_are_not_kept() -> None:
    kept = ReadCache()
    kept.listed("/f", ["a"])
    kept.listed("/f", [str(n) for n in range(LIST_NAMES_MAX + 1)])
    assert kept.children("/f") is UNKNOWN


def test_beyond_the_limits_what_was_not_asked_for_the_longest_is_forgotten() -> None:
    kept = ReadCache(nodes_max=3, bytes_max=1_000)
    for path in ("/a", "/b", "/c"):
        kept.found(path, node(b""))
    kept.node("/a")
    kept.found("/d", node(b""))
    assert kept.node("/b") is UNKNOWN
    assert kept.node("/a") == node(b"")
    kept.found("/e", node(b"x" * 990))
    assert len(kept) == 3
    kept.found("/f", node(b"x" * 990))
    assert len(kept) == 1
    kept.found("/g", node(b"x" * 1_001))
    assert len(kept) == 0
    kept.found("/h", node(b"x" * 900))
    assert len(kept) == 1, "what was forgotten weighs nothing"
