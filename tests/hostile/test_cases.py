"""The generated cases cover the protocol, say what they mean, and can be run again by their names."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

from anabranch.errors import PeerError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import open_entry
from anabranch.wire.frames import FRAME_BYTES_MAX, SEND, FrameDecoder
from hostile import sends
from hostile.cases import asked, drawn, edits_of, every, parse
from hostile.commands import TYPES, Place, body_of, frame, spoiled, type_of
from hostile.edges import Edit, edges
from hostile.evidence import LogTail
from hostile.nodes import described
from hostile.states import PLAIN, STATES

PLACE = Place("persistent://hostile/plain/t", PLAIN, "topic://hostile/plain/river", b"token", 7, 8)


def test_every_command_of_the_protocol_is_sent_in_every_state_that_lets_it_through() -> None:
    sent = {(case.state.name, case.command) for case in every()}
    commands = {command.partition("-")[0] for _, command in sent}
    assert commands >= set(TYPES)
    for state in STATES:
        assert {command for name, command in sent if name == state} >= set(asked())


def paths(message: Descriptor, above: tuple[str, ...] = ()) -> set[str]:
    """Fields, and those of the messages in them."""
    found = set()
    for field in message.fields:
        path = (*above, field.name)
        found.add(".".join(path))
        if field.message_type is not None and field.message_type is not message and len(path) < 3:
            found |= paths(field.message_type, path)
    return found


@pytest.mark.parametrize("command", [name for name in asked() if name not in sends.KINDS])
def test_every_field_of_a_command_is_taken_to_its_edges(command: str) -> None:
    edited = {".".join(edit.path) for edit in edits_of(command)}
    assert edited == paths(body_of(command))


def test_every_field_of_an_entry_is_taken_to_its_edges() -> None:
    edited = {".".join(edit.path) for edit in edits_of(sends.BATCH)}
    assert edited >= {f"metadata.{path}" for path in paths(described(pb.MessageMetadata))}
    assert edited >= {f"one.{path}" for path in paths(described(pb.SingleMessageMetadata))}


def test_edges_are_those_that_the_type_has() -> None:
    send = body_of("SEND").fields_by_name
    assert {"absent", "0", "-1", "i32-max", "i64-max"} <= set(edges(send["num_messages"]))
    ids = body_of("ACK").fields_by_name["message_id"]
    assert {"largest-many", "largest-empties", "nested-99", "garbage"} <= set(edges(ids))
    topic = body_of("LOOKUP").fields_by_name["topic"]
    assert {"absent", "empty", "not-utf8", "largest"} <= set(edges(topic))


@pytest.mark.parametrize("command", [name for name in asked() if name not in sends.KINDS])
def test_a_command_that_nobody_spoiled_is_one_that_the_broker_reads(command: str) -> None:
    (read,) = FrameDecoder().feed(spoiled(command, (), PLACE))
    assert read[0] == type_of(command)
    assert read[1].IsInitialized()


@pytest.mark.parametrize("kind", sends.KINDS)
def test_an_entry_that_nobody_spoiled_is_one_that_a_client_reads(kind: str) -> None:
    (read,) = FrameDecoder().feed(sends.spoiled(kind, (), PLACE, 5, "p"))
    assert read[:3] == (SEND, 1, 5)
    metadata, _ = open_entry(read[6])
    assert metadata.producer_name == "p"
    assert metadata.sequence_id == 5


def test_edits_are_on_the_wire() -> None:
    edited = spoiled("ACK", (Edit.parse("message_id.ack_set=-1"), Edit.parse("ack_type=1")), PLACE)
    (read,) = FrameDecoder().feed(edited)
    assert list(read[1].ack.message_id[0].ack_set) == [-1]
    assert read[1].ack.message_id[0].ledgerId == 7
    assert read[1].ack.ack_type == pb.CommandAck.Cumulative
    edited = sends.spoiled("SEND", (Edit.parse("num_messages=-1"),), PLACE, 1, "p")
    command = pb.BaseCommand.FromString(edited[8 : 8 + int.from_bytes(edited[4:8], "big")])
    assert command.send.num_messages == -1


def test_what_no_encoder_writes_can_be_sent() -> None:
    with pytest.raises(PeerError, match="UTF-8"):
        FrameDecoder().feed(spoiled("LOOKUP", (Edit.parse("topic=not-utf8"),), PLACE))
    with pytest.raises(PeerError, match="required"):
        FrameDecoder().feed(spoiled("LOOKUP", (Edit.parse("topic=absent"),), PLACE))
    with pytest.raises(PeerError, match="cannot be read"):
        FrameDecoder().feed(
            spoiled("ACK", (Edit.parse("message_id.first_chunk_message_id=nested-200"),), PLACE)
        )


@pytest.mark.parametrize("command", ["ACK", "SUBSCRIBE", "LOOKUP", "GET_OR_CREATE_SCHEMA"])
def test_the_largest_frames_are_as_large_as_a_broker_takes(command: str) -> None:
    for edit in edits_of(command):
        if edit.is_large:
            size = int.from_bytes(spoiled(command, (edit,), PLACE)[:4], "big")
            assert FRAME_BYTES_MAX * 0.99 < size <= FRAME_BYTES_MAX, edit


def test_a_case_is_run_again_by_its_name() -> None:
    for number, case in enumerate(every()):
        if number % 97 == 0 and not case.is_large:
            again = parse(case.name)
            assert again == case
            assert again.frames(PLACE, "p") == case.frames(PLACE, "p")
    for seed in range(50):
        case = drawn(seed)
        assert parse(case.name) == case


def test_a_log_gives_away_slow_turns_and_tracebacks(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    tail = LogTail(path)
    assert tail.look() == []
    path.write_text(
        "2026-01-01 00:00:00,000 INFO anabranch.broker.connection.session fine\n"
        "2026-01-01 00:00:00,000 WARNING anabranch.broker.runtime.loop_watch one turn of the event loop kept others "
        "waiting for 80 ms and used 70 ms of processor time (5 ms of it to collect garbage), in varint.py:3 f, "
        "called by broker/state/cursor.py:271 acked, called by x\n"
        "2026-01-01 00:00:01,000 ERROR anabranch.broker.connection.session request 1 from 127.0.0.1:1 failed\n"
        "Traceback (most recent call last):\n"
        '  File "/x/src/anabranch/broker/catalog/schemas.py", line 116, in get\n'
        "    raise ValueError\n"
        "ValueError: no\n"
        "2026-01-01 00:00:02,000 ERROR anabranch.storage.on_disk.wal half a li"
    )
    slow, trace = tail.look()
    assert (slow.kind, slow.place) == ("slow turn", "broker/state/cursor.py acked")
    assert (trace.kind, trace.place) == ("traceback", "ValueError in broker/catalog/schemas.py:116 get")
    assert tail.longest_cpu_ms == 70
    with path.open("a") as file:
        file.write("ne\n")
    (error,) = tail.look()
    assert (error.kind, error.detail) == ("error", "half a line")


def test_a_frame_says_its_sizes() -> None:
    assert frame(b"abc", b"de") == b"\x00\x00\x00\x09\x00\x00\x00\x03abcde"
