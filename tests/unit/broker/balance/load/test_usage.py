"""How much a broker uses of its core, its memory, its network and its disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import pytest

from anabranch.broker.balance.load.usage import NETWORK_AGAIN_S, ResourceMeter
from anabranch.broker.config.config import BrokerConfig
from anabranch.model.histogram import Histogram

GIGABIT = 125_000_000


class MeasuredLog:
    """Implements `LogFigures`: a log whose figures a test sets."""

    def __init__(self) -> None:
        self.figures = {"confirmed_bytes": 0.0, "unconfirmed_bytes": 0.0}
        self.sync = Histogram()

    def stats(self) -> Mapping[str, float]:
        return self.figures

    def histograms(self) -> Mapping[str, Histogram]:
        return {"sync": self.sync}


@dataclass
class Machine:
    config: BrokerConfig = field(default_factory=BrokerConfig)
    log: MeasuredLog = field(default_factory=MeasuredLog)
    now: float = 0.0
    loop: float = 0.0
    memory: int = 0
    network: float | None = GIGABIT
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def speed(self, names: tuple[str, ...]) -> float | None:
        self.asked.append(names)
        return self.network

    def meter(self) -> ResourceMeter:
        return ResourceMeter(
            lambda: self.config,
            lambda: self.loop,
            self.log,
            lambda: self.now,
            memory_used=lambda: self.memory,
            memory_max=lambda: 1000,
            network=self.speed,
        )

    def wrote(self, size: float, *, busy_s: float, within_s: float = 10.0) -> None:
        self.now += within_s
        self.log.figures["confirmed_bytes"] += size
        self.log.sync.observe(busy_s)


def test_the_loop_is_measured_against_its_one_core_and_memory_against_its_limit() -> None:
    machine = Machine(loop=0.75, memory=250)
    shares = machine.meter().look(0, 0)
    assert (shares.cpu, shares.memory) == (0.75, 0.25)


def test_the_network_is_measured_by_what_this_brokers_clients_send_and_get() -> None:
    shares = Machine().meter().look(GIGABIT / 4, GIGABIT * 2)
    assert (shares.network_in, shares.network_out) == (0.25, 1.0)


def test_the_speed_of_the_network_can_be_set() -> None:
    machine = Machine(config=BrokerConfig(load_balancer_override_broker_nic_speed_gbps=0.5))
    assert machine.meter().look(GIGABIT / 4, 0).network_in == 0.5
    assert machine.asked == []


def test_a_network_of_unknown_speed_counts_as_unused() -> None:
    assert Machine(network=None).meter().look(GIGABIT, GIGABIT).network_in == 0.0


def test_interfaces_are_asked_once_a_minute_and_may_be_named() -> None:
    machine = Machine(config=BrokerConfig(load_balancer_override_broker_nics=("eth1",)))
    meter = machine.meter()
    for at in (0.0, NETWORK_AGAIN_S - 1, NETWORK_AGAIN_S):
        machine.now = at
        meter.look(0, 0)
    assert machine.asked == [("eth1",), ("eth1",)]


def test_what_waits_for_the_disk_is_measured_against_its_limit() -> None:
    machine = Machine(config=msgspec.structs.replace(BrokerConfig(), max_pending_publish_bytes=1 << 20))
    machine.log.figures["unconfirmed_bytes"] = 1 << 19
    assert machine.meter().look(0, 0).pending == 0.5


def test_the_disk_is_measured_by_bytes_and_not_by_time() -> None:
    machine = Machine()
    meter = machine.meter()
    # Small writes one after the other: the disk is always busy, and could write far more.
    machine.wrote(1_000_000, busy_s=10.0)
    assert meter.look(0, 0).disk == pytest.approx(0.001)
    # 50 MB/s, of at least 100.
    machine.wrote(500_000_000, busy_s=8.0)
    assert meter.look(0, 0).disk == pytest.approx(0.5)
    # It has shown that it can do 500 MB/s.
    machine.wrote(500_000_000, busy_s=1.0)
    assert meter.look(0, 0).disk == pytest.approx(0.1)
    machine.wrote(5_000_000_000, busy_s=10.0)
    assert meter.look(0, 0).disk == pytest.approx(1.0)


def test_two_looks_at_the_same_moment_do_not_divide_by_zero() -> None:
    meter = Machine().meter()
    assert meter.look(0, 0).disk == 0.0
