"""Connections by broker: what is said while none can be opened."""

from __future__ import annotations

import logging

import pytest

from anabranch.client.errors import ConnectionLost
from anabranch.client.transport.pool import TOLD_AWAY_S, Connections
from unit.client.scripted import ScriptedBroker

Log = pytest.LogCaptureFixture
NOWHERE = "pulsar://127.0.0.1:1"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def said(caplog: Log) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def fail(connections: Connections) -> None:
    with pytest.raises(ConnectionLost):
        await connections.to(NOWHERE)


async def test_a_broker_that_is_away_for_longer_than_a_restart_is_told_of_once(
    script: ScriptedBroker, caplog: Log
) -> None:
    """A consumer of a broker that was gone waited without a word."""
    clock = Clock()
    connections = Connections(script.url, clock=clock)
    await fail(connections)
    clock.now = TOLD_AWAY_S - 0.1
    await fail(connections)
    assert said(caplog) == []
    clock.now = TOLD_AWAY_S
    await fail(connections)
    clock.now = 60
    await fail(connections)
    assert said(caplog) == [f"cannot connect to {NOWHERE}: Connection refused; trying again"]
    await connections.service()
    assert said(caplog)[1:] == [f"connected to {script.url}"]
    await fail(connections)
    assert len(said(caplog)) == 2
    await connections.close()
