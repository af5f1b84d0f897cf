"""Load that is skewed on four real brokers, and then reversed: it becomes even within few cycles, and nothing moves to
and fro."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import pstdev

from anabranch.balance.core.states import BundleAction, BundleChange
from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName, TopicName
from unit.broker.balance.balanced import agree, balancer
from unit.broker.balance.load.loaded_brokers import LOAD_EACH, QUICK, Loaded, loaded
from unit.broker.scalable.cluster import until

BROKERS = 4
MANY = NamespaceName.parse("public/many")
CYCLES_MAX = 10
HELD = replace(QUICK, is_shedding=False)


def topic_in(bundle: BundleName) -> TopicName:
    names = (TopicName.parse(f"persistent://{MANY}/t-{number}") for number in range(10_000))
    return next(name for name in names if bundle.holds(name))


def spread(made: Loaded) -> float:
    """The standard deviation of the loads, in shares of a loop."""
    return pstdev(LOAD_EACH * count for count in made.hot_of_each())


class Moves:
    """Transfers that the leader has begun, by bundle, until they are counted anew."""

    def __init__(self, made: Loaded) -> None:
        self.of: Counter[BundleName] = Counter()
        balancer(made.cluster.first).states.on_change(self._read)

    def _read(self, changes: Sequence[BundleChange]) -> None:
        self.of.update(one.bundle for one in changes if one.action is BundleAction.TRANSFER)


async def test_skewed_load_becomes_even_and_so_does_its_opposite() -> None:
    async with loaded(BROKERS) as made:
        made.settings = HELD
        first = made.cluster.first
        edges = [f"0x{number:x}0000000" for number in range(16)] + ["0xffffffff"]
        answer = await first.rest(
            "PUT", f"namespaces/{MANY}", json={"bundles": {"boundaries": edges, "numBundles": 16}}
        )
        assert answer.status_code == 204, answer.text
        await until(lambda: all(MANY in balancer(one).owners.bundles.ranges for one in made.cluster.nodes))
        bundles = balancer(first).owners.bundles.ranges[MANY].bundles(MANY)
        # Each broker has four of them in a row.
        for number, bundle in enumerate(bundles):
            await balancer(first).find_owner(bundle)
            to = made.cluster.nodes[number // 4].broker.registry.me
            if balancer(first).owners.owner_of(bundle) != to.address:
                await balancer(first).requests.transfer(bundle, to.id, "for the test")
        await agree(made.cluster)
        moves = Moves(made)
        for hot in (bundles[:4], bundles[-4:]):
            moves.of.clear()
            made.settings = HELD
            made.hot[:] = [topic_in(bundle) for bundle in hot]
            before = spread(made)
            made.settings = QUICK
            await until(lambda before=before: spread(made) < before)  # type: ignore[misc]
            await until(lambda: spread(made) <= made.settings.load_std_target)
            assert before > made.settings.load_std_target
            # A cycle moves one bundle at least, so that these are more than the cycles.
            assert moves.of.total() <= CYCLES_MAX
            assert set(moves.of.values()) == {1}, moves.of
