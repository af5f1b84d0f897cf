"""A socket is read exactly while there is no reason not to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from anabranch.broker.connection.reading import REQUESTS_HIGH, Pause, ReadGate


class Socket(asyncio.Transport):
    """Fails where asyncio's own would: at a second pause, or a second resume."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = True

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True


def lasting(gate: ReadGate) -> dict[Pause, tuple[Callable[[], None], Callable[[], None]]]:
    """Reasons that stay until something happens: how each begins and ends."""
    return {
        Pause.LOG: (gate.pause, gate.resume),
        Pause.ANSWERS: (lambda: gate.owes(11), lambda: gate.answered(11)),
        Pause.REQUESTS: (lambda: gate.requests(REQUESTS_HIGH), lambda: gate.requests(REQUESTS_HIGH // 2)),
        Pause.WORK: (gate.work_begun, gate.work_ended),
    }


@pytest.fixture
async def gate() -> ReadGate:
    return ReadGate(asyncio.get_running_loop(), unanswered_max=10)


@pytest.fixture
async def socket(gate: ReadGate) -> Socket:
    made = Socket()
    gate.open(made)
    return made


@pytest.mark.parametrize("first", [Pause.LOG, Pause.ANSWERS, Pause.REQUESTS, Pause.WORK])
async def test_reading_goes_on_once_the_last_reason_is_gone_whichever_that_is(
    gate: ReadGate, socket: Socket, first: Pause
) -> None:
    reasons = lasting(gate)
    for begin, _ in reasons.values():
        begin()
    assert gate.reasons == Pause.LOG | Pause.ANSWERS | Pause.REQUESTS | Pause.WORK
    assert not socket.is_read
    for reason in [other for other in reasons if other is not first]:
        reasons[reason][1]()
        assert not socket.is_read
    reasons[first][1]()
    assert socket.is_read
    assert gate.reasons == Pause(0)


async def test_work_that_ends_in_its_turn_never_stops_reading(gate: ReadGate, socket: Socket) -> None:
    gate.work_begun()
    gate.work_begun()
    assert socket.is_read
    gate.work_ended()
    gate.work_ended()
    await asyncio.sleep(0)
    assert socket.is_read


async def test_work_of_several_turns_stops_reading_until_all_of_it_is_done(
    gate: ReadGate, socket: Socket
) -> None:
    gate.work_begun()
    gate.work_begun()
    await asyncio.sleep(0)
    assert not socket.is_read
    gate.work_ended()
    assert not socket.is_read
    gate.work_ended()
    assert socket.is_read


async def test_a_closed_socket_is_left_alone(gate: ReadGate, socket: Socket) -> None:
    gate.close()
    gate.pause()
    assert socket.is_read
