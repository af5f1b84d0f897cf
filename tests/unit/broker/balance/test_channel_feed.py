"""The newest changes at the leader: what is here is whole, and what is not here is not guessed."""

from __future__ import annotations

import asyncio

from anabranch.balance.core.states import BrokerRun
from anabranch.balance.core.transfer import owned
from anabranch.broker.balance.channel.channel_feed import ChannelFeed
from anabranch.model.bundles import BundleName
from anabranch.model.position import BEFORE_ALL

A = BrokerRun("a:6650", "1")
X = BundleName.parse("acme/sales/0x00000000_0xffffffff")
CHANGES = [owned(X, version, A, A, 0, "") for version in range(1, 10)]


def filled(changes_max: int = 100) -> ChannelFeed:
    """Changes at the even entries of a ledger."""
    feed = ChannelFeed(changes_max)
    for number, change in enumerate(CHANGES):
        feed.add((7, 2 * number), change)
    return feed


def test_changes_after_a_position_come_some_at_a_time() -> None:
    feed = filled()
    assert feed.after(BEFORE_ALL, 4) == ((7, 6), CHANGES[:4])
    assert feed.after((7, 6), 4) == ((7, 14), CHANGES[4:8])
    assert feed.after((7, 14), 4) == ((7, 16), CHANGES[8:])
    assert feed.after((7, 16), 4) == ((7, 16), [])
    feed.passed((7, 17))
    assert feed.after((7, 14), 4) == ((7, 17), CHANGES[8:])


def test_what_lies_before_the_first_or_after_the_end_is_not_known() -> None:
    feed = filled(changes_max=2)
    assert feed.after(BEFORE_ALL, 4) is None
    assert feed.after(feed.first, 100) == ((7, 16), CHANGES[-len(CHANGES) + feed.first[1] // 2 + 1 :])
    assert feed.after((7, 18), 4) is None
    feed.restart((8, 0))
    assert feed.after((7, 16), 4) is None
    assert feed.after((8, 0), 4) == ((8, 0), [])


async def test_readers_wait_for_news_until_their_time_is_over_or_they_are_woken() -> None:
    feed = filled()
    async with asyncio.timeout(10):
        await feed.beyond((7, 14), 60)
        await feed.beyond((7, 16), 0)
        waiting = asyncio.create_task(feed.beyond((7, 16), 60))
        await asyncio.sleep(0)
        feed.add((7, 18), CHANGES[0])
        await waiting
        waiting = asyncio.create_task(feed.beyond((7, 18), 60))
        await asyncio.sleep(0)
        feed.wake()
        await waiting
