"""The compacting process: the same answers from either side of its pipe, and its failures as errors."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from anabranch.broker.compaction.worker import CompactionError, Worker
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_message
from anabranch.wire.frames import Buffer


def message(key: str, value: bytes) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key=key)
    return build_message(metadata, value)


@pytest.mark.parametrize("bytes_expected", [0, 1 << 30], ids=["small", "large"])
async def test_a_process_says_what_is_left(bytes_expected: int) -> None:
    worker = await Worker.start(keeps_keyless=False, bytes_expected=bytes_expected)
    entries: list[Buffer] = [message("a", b"1"), message("b", b"1"), memoryview(message("a", b"2"))]
    try:
        await worker.survey(entries[:2])
        await worker.survey(entries[2:])
        assert await worker.end_pass()
        assert await worker.compact(entries) == [None, entries[1], entries[2]]
        assert await worker.finish() == 1
    finally:
        await worker.close()


async def test_a_process_that_has_ended_is_an_error() -> None:
    worker = await Worker.start(keeps_keyless=False, bytes_expected=0)
    await worker.close()
    with pytest.raises(CompactionError, match="ended before its work"):
        await worker.survey([message("a", b"1")])


async def test_what_went_wrong_in_the_process_is_said() -> None:
    worker = await Worker.start(keeps_keyless=False, bytes_expected=0)
    try:
        await worker.survey([message("a", b"1")])
        assert await worker.end_pass()
        with pytest.raises(CompactionError, match="changed meanwhile"):
            await worker.finish()
    finally:
        await worker.close()


def test_a_process_whose_broker_was_killed_ends_without_a_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "anabranch.broker.compaction.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    question = msgspec.msgpack.encode(("survey", []))
    _, errors = process.communicate(len(question).to_bytes(4, "big") + question, timeout=60)
    assert (process.returncode, errors) == (0, b"")
