"""Requests as ZooKeeper's servers read them, and their answers."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.metadata.zookeeper.requests import (
    CHANGED,
    EPHEMERAL,
    NO_NODE,
    OPEN_TO_ALL,
    AddWatch,
    CreateNode,
    GetNode,
    ListChildren,
    NodeEvent,
    NodeStat,
    ReadMany,
    RefusedRequest,
    SetNode,
    StoredNode,
    read_event,
)

STAT = NodeStat(2, 3, 1_700_000_000_000, 1_700_000_000_001, 1, 0, 0, -(2**60), 5, 0, 2)
PACKED_STAT = struct.pack("!qqqqiiiqiiq", *STAT)


def sized(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


def test_a_creation_names_path_value_rights_and_flags() -> None:
    request = CreateNode("/a", b"v", OPEN_TO_ALL, EPHEMERAL)
    assert request.serialize() == bytes.fromhex(
        "00000002 2f61 00000001 76 00000001 0000001f 00000005 776f726c64 00000006 616e796f6e65 00000001"
    )
    assert request.deserialize(sized(b"/a") + PACKED_STAT, 0) == STAT


def test_a_change_names_the_version_it_replaces() -> None:
    assert SetNode("/a", b"", -1).serialize() == bytes.fromhex("00000002 2f61 00000000 ffffffff")
    assert SetNode("/a", b"", 7).deserialize(PACKED_STAT, 0) == STAT


def test_a_watch_is_asked_for_as_persistent_and_recursive() -> None:
    assert AddWatch("/w").serialize() == bytes.fromhex("00000002 2f77 00000001")


def test_a_node_without_a_value_has_an_empty_one() -> None:
    assert GetNode("/a").deserialize(struct.pack("!i", -1) + PACKED_STAT, 0) == StoredNode(b"", STAT)


@given(st.binary(max_size=40))
def test_the_value_and_the_figures_of_a_node_are_read_at_any_place(before: bytes) -> None:
    data = before + sized(b"value") + PACKED_STAT
    assert GetNode("/a").deserialize(data, len(before)) == StoredNode(b"value", STAT)


def test_names_with_javas_pairs_of_surrogates_are_read() -> None:
    canoe = "🛶".encode("utf-16-be").decode("utf-16-be").encode()
    as_java = "\ud83d\udef6".encode(errors="surrogatepass")
    names = struct.pack("!i", 3) + sized(b"plain") + sized(as_java) + sized(canoe)
    assert ListChildren("/").deserialize(names, 0) == ["plain", "🛶", "🛶"]


def test_many_reads_share_a_packet_and_an_absent_node_is_none() -> None:
    request = ReadMany([GetNode("/a"), ListChildren("/b"), GetNode("/gone")])
    assert request.serialize() == (
        b"".join(struct.pack("!i?i", part.type, False, -1) + part.serialize() for part in request.parts)
        + struct.pack("!i?i", -1, True, -1)
    )
    answer = (
        struct.pack("!i?i", 4, False, 0) + sized(b"v") + PACKED_STAT
        + struct.pack("!i?i", 8, False, 0) + struct.pack("!i", 1) + sized(b"c")
        + struct.pack("!i?i", -1, False, NO_NODE) + struct.pack("!i", NO_NODE)
        + struct.pack("!i?i", -1, True, -1)
    )  # fmt: skip
    assert request.deserialize(answer, 0) == [StoredNode(b"v", STAT), ["c"], None]


def test_many_reads_are_refused_where_one_is_not_allowed() -> None:
    answer = (
        struct.pack("!i?i", -1, False, -102) + struct.pack("!i", -102) + struct.pack("!i?i", -1, True, -1)
    )
    with pytest.raises(RefusedRequest) as refusal:
        ReadMany([GetNode("/a")]).deserialize(answer, 0)
    assert refusal.value.code == -102


def test_an_event_names_what_happened_and_where() -> None:
    data = struct.pack("!ii", CHANGED, 3) + sized(b"/w/a")
    assert read_event(data, 0) == NodeEvent(CHANGED, "/w/a")
