"""Safe mode: when the metadata store is in doubt, or most brokers vanish at once, nothing is moved for a while."""

from __future__ import annotations

import pytest

from anabranch.broker.balance.safe_mode import SafeMode
from unit.broker.balance.owners_lab import Lab, owners_lab


async def made(lab: Lab, brokers: str) -> tuple[SafeMode, list[float]]:
    """The safe mode of the first broker, and its clock."""
    machines = [await lab.started(name) for name in brokers]
    first, clock = machines[0], [1000.0]
    found = SafeMode(first.metadata.session, first.registry, lambda: clock[0], lambda: 150.0)
    await lab.until(lambda: len(first.registry.living()) == len(brokers))
    found.start()
    return found, clock


async def test_a_broker_that_starts_with_a_well_store_waits_for_no_other() -> None:
    async with owners_lab() as lab:
        mode, _ = await made(lab, "a")
        assert mode.why() is None


@pytest.mark.parametrize("is_lost", [False, True], ids=["in doubt", "lost"])
async def test_it_lasts_until_the_store_has_been_well_for_long_enough(is_lost: bool) -> None:
    async with owners_lab() as lab:
        mode, clock = await made(lab, "a")
        metadata = lab.machines[0].metadata
        metadata.disconnect()
        if is_lost:
            await metadata.expire_session()
        await lab.until(lambda: mode.why() is not None)
        clock[0] += 1000
        assert "the session of the metadata store is" in (mode.why() or "")
        await metadata.reconnect()
        await lab.until(lambda: "waiting 150 s" in (mode.why() or ""))
        clock[0] += 149
        assert "waiting 1 s for all brokers" in (mode.why() or "")
        clock[0] += 1
        assert mode.why() is None
        mode.close()


async def test_most_brokers_that_vanish_within_a_short_time_are_the_stores_trouble() -> None:
    async with owners_lab() as lab:
        mode, clock = await made(lab, "abcd")
        first, *others = lab.machines
        for left, other in zip((3, 2, 1), others, strict=True):
            await other.metadata.close()
            await lab.until(lambda left=left: len(first.registry.living()) == left)  # type: ignore[misc]
            clock[0] += 2
            assert (mode.why() is None) == (left > 1)
        assert "3 of 4 brokers vanished at once" in (mode.why() or "")
        clock[0] += 150
        assert mode.why() is None


async def test_brokers_that_vanish_one_after_the_other_are_their_own_trouble() -> None:
    async with owners_lab() as lab:
        mode, clock = await made(lab, "abcd")
        first, *others = lab.machines
        for left, other in zip((3, 2, 1), others, strict=True):
            await other.metadata.close()
            await lab.until(lambda left=left: len(first.registry.living()) == left)  # type: ignore[misc]
            clock[0] += 7
            assert mode.why() is None


async def test_brokers_that_have_said_that_they_end_do_not_vanish() -> None:
    async with owners_lab() as lab:
        mode, _ = await made(lab, "abcd")
        first, *others = lab.machines
        for other in others:
            await other.registry.drain()
        await lab.until(lambda: sum(one.is_draining for one in first.registry.living().values()) == 3)
        for other in others:
            await other.metadata.close()
        await lab.until(lambda: len(first.registry.living()) == 1)
        assert mode.why() is None
