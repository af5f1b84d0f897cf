"""Trying again: which errors end it, what it pauses for, and what it raises."""

from __future__ import annotations

import asyncio
import random

import pytest

from anabranch.client.errors import ConnectionLost, DataLost, RequestRefused
from anabranch.client.transport.attachment import (
    AttachedPart,
    Backoff,
    keep_trying,
    never,
    refused_with,
    troubles,
    unless_lost,
)
from anabranch.client.transport.core.refusals import Meaning, RefusedPart
from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb

GONE = RequestRefused(pb.TopicNotFound, "no such topic")
BUSY = RequestRefused(pb.ServiceNotReady, "soon")
LOST = ConnectionLost("lost")


class Attempts:
    """Fails with each of these in turn, then returns how often it was called."""

    def __init__(self, *errors: Exception) -> None:
        self.calls = 0
        self._errors = list(errors)

    async def __call__(self) -> int:
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)
        return self.calls


def short() -> Backoff:
    return Backoff(random.Random(1), first_s=0.0001, limit_s=0.0001)


async def test_it_is_tried_until_an_attempt_returns() -> None:
    assert await keep_trying(Attempts(LOST, BUSY, GONE), short(), "it", never) == 4


async def test_the_error_that_ends_it_is_raised() -> None:
    attempts = Attempts(LOST, BUSY, GONE)
    with pytest.raises(RequestRefused) as raised:
        await keep_trying(attempts, short(), "it", refused_with(RefusedPart.CONSUMER, Meaning.GONE))
    assert raised.value is GONE
    assert attempts.calls == 3


async def test_the_rule_may_raise_another_error_in_its_place() -> None:
    def ends(error: AnabranchError) -> AnabranchError | bool:
        return DataLost("what was there") if error is GONE else False

    with pytest.raises(DataLost, match="what was there"):
        await keep_trying(Attempts(BUSY, GONE), short(), "it", ends)


async def test_only_a_lost_connection_is_made_again_where_every_refusal_counts() -> None:
    with pytest.raises(RequestRefused):
        await keep_trying(Attempts(LOST, BUSY), short(), "it", unless_lost)


async def test_a_mistake_of_ours_is_not_tried_again() -> None:
    with pytest.raises(ZeroDivisionError):
        await keep_trying(Attempts(LOST, ZeroDivisionError()), short(), "it", never)


async def test_who_waits_for_it_can_tell_what_went_wrong_last() -> None:
    with troubles() as trouble:
        await keep_trying(Attempts(LOST, BUSY), short(), "it", never)
        assert trouble.last is BUSY


async def test_a_pause_is_cut_short() -> None:
    wake = asyncio.Event()
    wake.set()
    backoff = Backoff(random.Random(1), first_s=1000, limit_s=1000)
    async with asyncio.timeout(10):
        assert await keep_trying(Attempts(LOST), backoff, "it", never, wake=wake) == 2


async def test_a_part_is_lost_once() -> None:
    part = AttachedPart(7)
    part.lost(LOST)
    part.lost(BUSY)
    assert part.over.exception() is LOST
