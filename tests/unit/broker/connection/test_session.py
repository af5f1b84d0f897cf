"""When a connection is read, on a transport that writes down what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_command
from harness.guarded import Guarded, guarded

LIMIT = 100


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.is_read = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True


@pytest.fixture
async def acme() -> AsyncIterator[Guarded]:
    async with guarded(max_pending_publish_requests_per_connection=LIMIT) as made:
        yield made


async def test_a_connection_with_too_many_unanswered_publishes_is_not_read_until_half_have_theirs(
    acme: Guarded,
) -> None:
    session, transport = acme.broker.new_session(), Transport()
    session.connection_made(transport)
    for _ in range(2):
        session.owes(LIMIT)
        assert transport.is_read
        session.owes(30)
        session.owes(5)
        assert not transport.is_read
        session.answered(84)
        assert not transport.is_read
        session.answered(1)
        assert transport.is_read
        session.answered(LIMIT // 2)
    session.connection_lost(None)


async def test_without_a_limit_it_always_is() -> None:
    async with guarded(max_pending_publish_requests_per_connection=0) as made:
        session, transport = made.broker.new_session(), Transport()
        session.connection_made(transport)
        session.owes(1_000_000)
        assert transport.is_read
        session.connection_lost(None)


async def test_other_reasons_not_to_read_are_kept(acme: Guarded) -> None:
    session, transport = acme.broker.new_session(), Transport()
    session.connection_made(transport)
    session.pause_reading()
    session.owes(LIMIT + 1)
    session.answered(LIMIT + 1)
    assert not transport.is_read
    session.owes(LIMIT + 1)
    session.resume_reading()
    assert not transport.is_read
    session.answered(LIMIT + 1)
    assert transport.is_read
    session.connection_lost(None)


async def test_a_connection_that_fills_its_buffer_leaves_a_turn_of_the_loop_to_others(acme: Guarded) -> None:
    session, transport = acme.broker.new_session(), Transport()
    session.connection_made(transport)
    room = session.get_buffer(-1)
    greeting = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    greeting.connect.client_version = "x" * 100_000
    part = encode_command(greeting)[: len(room)]
    room[: len(part) - 1] = part[:-1]
    session.buffer_updated(len(part) - 1)
    assert transport.is_read
    session.get_buffer(-1)[:1] = part[-1:]
    session.buffer_updated(1)
    assert not transport.is_read
    await asyncio.sleep(0)
    assert transport.is_read
    session.connection_lost(None)
