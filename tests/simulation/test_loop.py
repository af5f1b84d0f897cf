"""The simulator's event loop: time that jumps, order that repeats, hosts that can be held back or ended."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.simulation.machine import loop as simulated
from anabranch.simulation.machine.loop import Deadlock, Host, Livelock, SimLoop, context_of


@pytest.fixture
def loop() -> SimLoop:
    return SimLoop(start=100.0)


def test_time_jumps_to_the_next_timer(loop: SimLoop) -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        async with asyncio.timeout(5):
            await asyncio.sleep(1)
        return asyncio.get_running_loop().time()

    assert loop.run_until_complete(main()) == 3701.0


def test_timers_fire_by_time_and_then_by_age(loop: SimLoop) -> None:
    seen: list[str] = []
    loop.call_later(2, seen.append, "later")
    loop.call_later(1, seen.append, "first")
    loop.call_later(1, seen.append, "second")
    loop.call_soon(seen.append, "now")
    loop.call_later(0.5, seen.append, "never").cancel()
    loop.run_until_complete(asyncio.sleep(3))
    assert seen == ["now", "first", "second", "later"]


def test_a_task_that_nothing_can_wake_is_named_with_the_place_where_it_waits(loop: SimLoop) -> None:
    async def forgotten() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        await asyncio.create_task(forgotten(), name="waits for ever")

    with pytest.raises(Deadlock, match=r"waits for ever: .*forgotten"):
        loop.run_until_complete(main())
    loop.close()


def test_callbacks_that_never_let_time_pass_are_found_out(
    loop: SimLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "CALLBACKS_PER_MOMENT_MAX", 100)

    async def main() -> None:
        while True:  # noqa: ASYNC110 (that is the fault)
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        loop.run_until_complete(main())
    loop.close()


def test_a_paused_host_finds_everything_waiting_when_it_resumes_and_others_go_on(loop: SimLoop) -> None:
    seen: list[tuple[str, float]] = []

    async def beat(name: str) -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            seen.append((name, loop.time()))

    async def main() -> None:
        host = Host("b1")
        held = loop.create_task(beat("held"), context=context_of(host))
        free = loop.create_task(beat("free"))
        await asyncio.sleep(0.5)
        host.is_paused = True
        await asyncio.sleep(10)
        loop.resume(host)
        await asyncio.gather(held, free)

    loop.run_until_complete(main())
    assert seen == [
        ("free", 101.0),
        ("free", 102.0),
        ("free", 103.0),
        ("held", 110.5),
        ("held", 111.5),
        ("held", 112.5),
    ]


def test_a_dead_host_does_nothing_more_not_even_its_finally_blocks(loop: SimLoop) -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
            seen.append("worked")
        finally:
            seen.append("cleaned up")

    async def main() -> None:
        host = Host("b1")
        loop.create_task(work(), context=context_of(host))
        await asyncio.sleep(0.5)
        host.is_dead = True
        await asyncio.sleep(10)
        assert seen == []

    loop.run_until_complete(main())
    loop.close()
    assert seen == ["cleaned up"]  # By the closing of the loop, when nobody looks any more.


def test_what_nobody_handled_is_kept(loop: SimLoop) -> None:
    def fail() -> None:
        raise ValueError("nobody catches this")

    loop.call_soon(fail)
    loop.run_until_complete(asyncio.sleep(1))
    assert [str(one["exception"]) for one in loop.unhandled] == ["nobody catches this"]


def test_threads_are_played_inline(loop: SimLoop) -> None:
    async def main() -> int:
        return await asyncio.to_thread(lambda: 42)

    assert loop.run_until_complete(main()) == 42


def test_safety_can_be_looked_at_after_every_callback(loop: SimLoop) -> None:
    looks: list[float] = []
    loop.after_each = lambda: looks.append(loop.time())
    loop.run_until_complete(asyncio.sleep(1))
    assert len(looks) == loop.callbacks > 2
