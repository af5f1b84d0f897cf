"""Which broker gets a bundle, by what every broker knows of the loads."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from anabranch.balance.core.fold import Fold
from anabranch.balance.core.isolation import IsolationPolicy
from anabranch.balance.core.load import BrokerLoad
from anabranch.balance.core.owner_rules import OwnerRules, owner_rules
from anabranch.broker.balance.load.choosing import ChooseByLoad
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.registry import BrokerRegistration, BrokerRegistry
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.bundles import BundleName, bundle_ranges
from anabranch.model.names import NamespaceName
from unit.broker.balance.load.rig import Situation, broker_load

BUNDLES = bundle_ranges(tuple(f"0x{edge:08x}" for edge in (*range(0, 2**32, 2**22), 2**32 - 1))).bundles(
    NamespaceName.parse("public/default")
)


@dataclass
class Choosing:
    registry: BrokerRegistry
    situation: Situation = field(default_factory=Situation)
    loads: dict[str, BrokerLoad] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.choose = ChooseByLoad(
            self.registry,
            Fold,
            lambda: self.loads,
            self.situation.current,
            self.situation.now_ms,
            random.Random(7).randrange,
        )

    def report(self, **loads: float) -> None:
        self.loads = {
            f"{name}:1": broker_load(load, measured_ms=self.situation.ms, bundles=100)
            for name, load in loads.items()
        }

    def spread(self, bundles: int = 200) -> Counter[str]:
        """How many of so many bundles each broker gets at once."""
        found: Counter[str] = Counter()
        for bundle in BUNDLES[:bundles]:
            choice = self.choose(bundle)
            assert choice.to is not None
            found[choice.to.broker] += 1
        return found


@pytest.fixture
async def choosing() -> AsyncIterator[Choosing]:
    store = MemoryMetadata(lambda: 0)
    registries = [
        BrokerRegistry(
            await store.connect(),
            BrokerRegistration(BrokerAddress(f"pulsar://{name}:1", f"http://{name}:2"), f"run-{name}"),
        )
        for name in ("c", "b", "a")
    ]
    for registry in registries:
        await registry.start()
    yield Choosing(registries[-1])
    for registry in registries:
        await registry.close()


async def test_less_loaded_brokers_get_more(choosing: Choosing) -> None:
    choosing.report(a=0.1, b=0.5, c=0.8)
    found = choosing.spread(50)
    assert found["a:1"] > found["b:1"] > found["c:1"] == 0
    # Overloaded brokers are not even drawn.
    choosing.report(a=0.1, b=0.9, c=0.9)
    assert choosing.spread(50) == {"a:1": 50}


async def test_many_bundles_at_once_do_not_all_go_to_one_broker(choosing: Choosing) -> None:
    """As after a broker's death: the loads are those from before, for all of them."""
    choosing.report(a=0.3, b=0.45, c=0.45)
    found = choosing.spread(200)
    assert min(found.values()) > 40


async def test_a_report_ends_what_was_counted_on_top(choosing: Choosing) -> None:
    choosing.report(a=0.1, b=0.4, c=0.9)
    assert choosing.spread(300)["b:1"] > 0
    choosing.situation.ms += 1
    choosing.report(a=0.1, b=0.4, c=0.9)
    assert choosing.spread(20) == {"a:1": 20}


async def test_without_any_load_numbers_of_bundles_decide(choosing: Choosing) -> None:
    choice = choosing.choose(BUNDLES[0])
    assert choice.to is not None
    assert (choice.to.broker, choice.to.run) == ("a:1", "run-a")
    assert "bundles" in choice.reason


async def test_a_broker_that_is_not_wanted_is_not_chosen(choosing: Choosing) -> None:
    choosing.report(a=0.0, b=0.9, c=0.0)
    choices = [choosing.choose(bundle, without=("a:1", "c:1")).to for bundle in BUNDLES[:20]]
    assert {one.broker for one in choices if one is not None} == {"b:1"}


async def test_no_broker_is_chosen_if_none_may(choosing: Choosing) -> None:
    choosing.report(a=0.0, b=0.0, c=0.0)
    choice = choosing.choose(BUNDLES[0], without=("a:1", "b:1", "c:1"))
    assert choice.to is None
    assert "no broker may own it" in choice.reason


async def test_a_broker_with_too_many_topics_gets_no_more(choosing: Choosing) -> None:
    choosing.report(a=0.0, b=0.5, c=0.5)
    choosing.loads["a:1"] = replace(choosing.loads["a:1"], topics=50_000)
    assert "a:1" not in choosing.spread(50)


async def test_isolation_is_honoured(choosing: Choosing) -> None:
    policy = IsolationPolicy(("public/default",), ("b:1",), (), 1, 80, None)

    def rules() -> OwnerRules:
        return owner_rules(
            ("a:1", "b:1", "c:1"), {"p": policy}, {}, {}, lambda pattern, text: pattern == text
        )

    choosing.choose = ChooseByLoad(
        choosing.registry,
        Fold,
        lambda: choosing.loads,
        choosing.situation.current,
        choosing.situation.now_ms,
        random.Random(7).randrange,
        rules=rules,
    )
    choosing.report(a=0.0, b=0.6, c=0.0)
    assert set(choosing.spread(20)) == {"b:1"}
    other = BundleName.parse("public/other/0x00000000_0xffffffff")
    assert {choosing.choose(other).to.broker for _ in range(20)} == {"a:1", "c:1"}  # type: ignore[union-attr]
