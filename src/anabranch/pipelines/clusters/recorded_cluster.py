"""Makes a trace of a cluster from its load history: what flowed through bundles, and which brokers there were. Pure.

A bundle that was split is one bundle of the trace, with the load of all its parts: whether and where it is split, the
replay decides. Its load is assumed to be even over its topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from anabranch.balance.core.load import BrokerLoad, weighted
from anabranch.balance.core.settings import BalanceSettings
from anabranch.broker.scalable.load.balance_records import BundleSample
from anabranch.broker.scalable.load.history_records import HistoryRecord
from anabranch.model.bundles import BundleName
from anabranch.model.names import InvalidName
from anabranch.pipelines.clusters.cluster_trace import MINUTE_MS, RATES, ClusterTrace, LoadCost
from anabranch.pipelines.clusters.recorded_decisions import settings_of
from anabranch.pipelines.clusters.replayed_bundles import numbered
from anabranch.pipelines.replay.trace import BadTrace, Floats

# A broker's figures hold until its next ones, and no longer than this: then the broker is gone, or has no traffic.
HOLD_MINUTES: Final = 2
# So many reports are needed at least to tell what messages and bytes cost.
REPORTS_MIN: Final = 10


def recorded_cluster(name: str, records: Sequence[HistoryRecord]) -> ClusterTrace:
    """Makes the trace. BadTrace if the records have no loads of bundles."""
    measured = [one for one in records if one.bundle_loads is not None and one.bundle_loads.bundles]
    if not measured:
        raise BadTrace(
            f"{name} has no loads of bundles: brokers record them where loadManagerClassName names the balancer"
        )
    start_ms = min(one.at for one in measured)
    roots = _Roots()
    # By broker and minute: the last measurement, which may be told in several records.
    seen: dict[tuple[str, int], tuple[int, list[BundleSample]]] = {}
    for one in sorted(measured, key=lambda one: one.at):
        assert one.bundle_loads is not None
        key = one.broker, (one.at - start_ms) // MINUTE_MS
        at_ms, held = seen.get(key, (0, []))
        seen[key] = one.at, [*(held if at_ms == one.at else ()), *one.bundle_loads.bundles]
        for sample in one.bundle_loads.bundles:
            roots.find(sample.bundle, one.broker)
    samples = max(minute for _, minute in seen) + 1
    brokers, living = _brokers(records, start_ms, {broker for broker, _ in seen})
    figures = _figures(roots, {key: held for key, (_, held) in seen.items()}, samples)
    base = np.ones((RATES, len(roots.names)))
    number = numbered(brokers)
    owners = np.array([number[one] for one in roots.first_owners])
    # A broker that went before the first decision was recorded has no bundles to give.
    first = sorted(living[0][1])
    owners = np.where(np.isin(owners, first), owners, first[0])
    order = np.arange(base.size).reshape(base.shape)
    return ClusterTrace(
        name=name,
        kind="recorded",
        start_ms=start_ms,
        bundles=roots.names,
        base=base,
        course=order,
        courses=figures[:RATES].reshape(base.size, samples),
        topics=figures[RATES].max(axis=1).astype(np.int64),
        sessions=figures[RATES + 1].max(axis=1).astype(np.int64),
        brokers=brokers,
        living=living,
        owners=owners,
        cost=load_cost(records),
    )


class _Roots:
    """The bundles as they were first seen; those that were made by splits belong to the one they are a part of."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.first_owners: list[str] = []
        self._rows: dict[str, int] = {}
        self._edges: dict[str, list[tuple[int, int, int]]] = {}

    def find(self, name: str, owner: str = "") -> int:
        """The row of the bundle, which is a new one with that owner if it is a part of none."""
        if (found := self._rows.get(name)) is not None:
            return found
        try:
            bundle = BundleName.parse(name)
        except InvalidName as error:
            raise BadTrace(f"load history names a bundle that is none: {error}") from None
        first, last = bundle.edges
        known = self._edges.setdefault(str(bundle.namespace), [])
        row = next((row for low, high, row in known if low <= first and last <= high), len(self.names))
        self._rows[name] = row
        if row == len(self.names):
            known.append((first, last, row))
            self.names.append(name)
            self.first_owners.append(owner)
        return row


def _figures(roots: _Roots, seen: Mapping[tuple[str, int], Sequence[BundleSample]], samples: int) -> Floats:
    """The four rates, the topics and the sessions of each bundle in each minute."""
    found = np.zeros((RATES + 2, len(roots.names), samples))
    minutes: dict[str, list[int]] = {}
    for broker, minute in sorted(seen):
        minutes.setdefault(broker, []).append(minute)
    for broker, told in minutes.items():
        for minute, after in zip(told, [*told[1:], samples], strict=True):
            until = min(after, minute + HOLD_MINUTES, samples)
            for one in seen[broker, minute]:
                rates = one.msg_rate_in, one.bytes_rate_in, one.msg_rate_out, one.bytes_rate_out
                # The parts of a bundle add up, at whatever brokers they are.
                figures = np.array([*rates, one.topics, one.sessions])
                found[:, roots.find(one.bundle), minute:until] += figures[:, None]
    return found


def _brokers(
    records: Iterable[HistoryRecord], start_ms: int, measured: set[str]
) -> tuple[list[str], list[tuple[int, frozenset[int]]]]:
    """All brokers, and which of them lived when, as the leader's decisions tell it."""
    told = sorted((one.at, one.shed.brokers) for one in records if one.shed is not None)
    brokers = sorted(measured.union(*(found for _, found in told)))
    number = numbered(brokers)
    if not told:
        return brokers, [(start_ms, frozenset(range(len(brokers))))]
    living: list[tuple[int, frozenset[int]]] = []
    for at_ms, found in told:
        alive = frozenset(number[one] for one in found)
        if alive and (not living or living[-1][1] != alive):
            living.append((max(start_ms, at_ms) if living else start_ms, alive))
    return brokers, living or [(start_ms, frozenset(range(len(brokers))))]


def load_cost(records: Iterable[HistoryRecord]) -> LoadCost:
    """What messages and bytes cost, from the brokers' reports; the usual values if there are too few of them."""
    settings = BalanceSettings()
    figures: list[tuple[float, float, float]] = []
    for one in records:
        if one.shed is not None:
            settings = settings_of(one.shed.settings)
        if (told := one.broker_load) is not None:
            load: BrokerLoad = told.report(one.at)[0]
            figures.append((load.msg_rate, load.throughput_now, weighted(load, settings)))
    if len(figures) < REPORTS_MIN:
        return LoadCost()
    messages, data, loads = np.array(figures).T
    return _fitted(messages, data, loads)


def _fitted(messages: Floats, data: Floats, loads: Floats) -> LoadCost:
    """Least squares without negative costs. Where messages and bytes go together, either may be left with all."""
    parts = {"idle": np.ones(len(loads)), "each_message": messages, "each_byte": data}
    parts = {name: column for name, column in parts.items() if column.any()}
    while True:
        names = list(parts)
        columns = np.column_stack([parts[name] for name in names])
        scale = columns.max(axis=0)
        found = np.linalg.lstsq(columns / scale, loads, rcond=None)[0] / scale
        costs = dict(zip(names, found.tolist(), strict=True))
        worst = min(costs, key=lambda name: costs[name])
        if costs[worst] >= 0 or len(parts) == 1:
            return LoadCost(
                **{"each_message": 0.0, "each_byte": 0.0, **{n: max(0.0, c) for n, c in costs.items()}}
            )
        del parts[worst]
