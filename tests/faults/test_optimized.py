"""`python -O` takes every `assert` out and keeps every promise: programs run under it, and this process judges them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from soak.link import Link

from anabranch.wire.batch import messages
from harness.broker_process import BrokerProcess
from unit.storage.on_disk.test_processes import SOURCE, Writer

HEIR = str(Path(__file__).resolve().parents[1] / "unit" / "storage" / "on_disk" / "heir_process.py")
TOPIC = "persistent://public/default/t"
COUNT = 50


@pytest.fixture(autouse=True)
def optimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is started from here on runs as with -O. This process does not: its asserts are the test."""
    assert sys.flags.optimize == 0
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")


def take(root: Path, incarnation: str) -> dict[int, tuple[int, int]]:
    """What an heir of that name finds: entries and states of each ledger."""
    environ = {**os.environ, "PYTHONPATH": SOURCE}
    ended = subprocess.run(
        [sys.executable, HEIR, str(root), incarnation],
        env=environ,
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    first, *lines = ended.stdout.decode().splitlines()
    assert first == "optimize 1"
    return {int(ledger): (int(entries), int(states)) for _, ledger, entries, states in map(str.split, lines)}


async def test_a_writer_that_was_fenced_confirms_nothing_more(tmp_path: Path) -> None:
    writer = await Writer.start(tmp_path, "victim", 7)
    try:
        await asyncio.wait_for(writer.listen(until=100), 60)
        writer.process.send_signal(signal.SIGSTOP)
        found = await asyncio.to_thread(take, tmp_path, "victim")
        writer.process.send_signal(signal.SIGCONT)
        # Without a fence it would go on for ever.
        await asyncio.wait_for(writer.listen(), 60)
        assert writer.lost == {1, 2, 3}
        for ledger, confirmed in writer.entries.items():
            assert (confirmed, writer.states[ledger]) <= found[ledger]
            assert confirmed <= found[ledger][0]
    finally:
        if writer.process.returncode is None:
            writer.process.send_signal(signal.SIGCONT)
            writer.process.kill()
        await writer.process.wait()


def test_a_broker_that_is_killed_has_what_it_acknowledged(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"brokerDeduplicationEnabled": True}) as broker:
        with Link(broker.port) as link:
            link.producer(TOPIC, 1)
            for n in range(COUNT):
                link.publish(b"message %d" % n, n, 1)
        broker.kill()
        broker.start()
        with Link(broker.port) as link:
            link.subscribe(TOPIC, "s", permits=1000)
            found = [bytes(messages(one.payload)[0][1]) for one in link.messages(COUNT)]
        assert found == [b"message %d" % n for n in range(COUNT)]
        assert broker.stop() == 0
