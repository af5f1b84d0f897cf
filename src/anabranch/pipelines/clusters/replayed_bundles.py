"""The bundles of a replayed cluster: who owns each, what flows through it, and the parts that splits have made. Pure.

Bundles are rows of arrays, so that the loads of a thousand brokers with 100,000 bundles come from a few sums. A bundle
that was split keeps its row without an owner; its parts are new rows with their share of its load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from anabranch.balance.core.load import BundleLoad, namespace_of
from anabranch.model.bundles import HASH_SPACE_END, BundleName
from anabranch.pipelines.clusters.cluster_trace import RATES, ClusterTrace, Ints, topic_places
from anabranch.pipelines.replay.trace import Floats

NO_BROKER = -1


class ReplayedBundles:
    """Changed by `give` and `divide` alone; `look` chooses the moment that all figures are of."""

    def __init__(self, trace: ClusterTrace, owners: Ints) -> None:
        self._trace = trace
        self.names = list(trace.bundles)
        self.rows = {name: row for row, name in enumerate(self.names)}
        self.owner = owners.copy()
        self.topics = trace.topics.copy()
        self.sessions = trace.sessions.copy()
        self.counts = Counter(namespace_of(name) for name in self.names)
        self._origin = np.arange(len(self.names))
        self._share = np.ones(len(self.names))
        self._places: dict[int, Sequence[int]] = {}
        self._owned: dict[str, str] | None = None
        self._sorted: tuple[Ints, Ints] | None = None
        self._sums: Floats | None = None
        self._held: Ints | None = None
        self.rates: Floats = np.zeros((RATES, 0))
        # How often the rates of all bundles, and the bundles of each broker, have changed.
        self.flow = -1
        self.changes = np.zeros(len(trace.brokers), dtype=np.int64)
        self.look(trace.start_ms)

    def look(self, at_ms: int) -> None:
        sample = self._trace.sample(at_ms)
        version = int(self._trace.versions[sample])
        if version != self.flow or self.rates.shape[1] != len(self.names):
            self.rates = self._trace.rates(sample)[:, self._origin] * self._share
            self.flow = version
            self._sums = None

    # -- brokers

    @property
    def sums(self) -> Floats:
        """By rate and broker."""
        if self._sums is None:
            owned = self.owner >= 0
            self._sums = np.array(
                [
                    np.bincount(self.owner[owned], row[owned], minlength=len(self._trace.brokers))
                    for row in self.rates
                ]
            )
        return self._sums

    @property
    def held(self) -> Ints:
        """The number of bundles and of topics of each broker, as two rows."""
        if self._held is None:
            count = len(self._trace.brokers)
            owned = self.owner >= 0
            bundles = np.bincount(self.owner[owned], minlength=count)
            topics = np.bincount(self.owner[owned], self.topics[owned], minlength=count)
            self._held = np.array([bundles, topics], dtype=np.int64)
        return self._held

    def demand(self) -> Floats:
        """The share that each broker's bundles take of it, without a limit."""
        sums = self.sums
        return self._trace.cost.demand(sums[0] + sums[2], sums[1] + sums[3])

    def of_broker(self, broker: int) -> Ints:
        """The rows of the broker's bundles."""
        if self._sorted is None:
            order = np.argsort(self.owner, kind="stable")
            bounds = np.searchsorted(self.owner[order], np.arange(len(self._trace.brokers) + 1))
            self._sorted = order, bounds
        order, bounds = self._sorted
        return order[bounds[broker] : bounds[broker + 1]]

    @property
    def owners(self) -> dict[str, str]:
        """The owner of each bundle by name. The same value until something changes, so it must not be kept."""
        if self._owned is None:
            brokers = self._trace.brokers
            pairs = zip(self.names, self.owner.tolist(), strict=True)
            self._owned = {name: brokers[owner] for name, owner in pairs if owner >= 0}
        return self._owned

    def loads(self, rows: Iterable[int]) -> list[BundleLoad]:
        chosen = np.fromiter(rows, dtype=np.int64)
        figures = zip(
            chosen.tolist(),
            *self.rates[:, chosen].tolist(),
            self.topics[chosen].tolist(),
            self.sessions[chosen].tolist(),
            strict=True,
        )
        return [
            BundleLoad(
                bundle=self.names[row],
                msg_rate_in=msg_in,
                throughput_in=bytes_in,
                msg_rate_out=msg_out,
                throughput_out=bytes_out,
                topics=topics,
                sessions=sessions,
            )
            for row, msg_in, bytes_in, msg_out, bytes_out, topics, sessions in figures
        ]

    # -- changes

    def give(self, row: int, broker: int) -> None:
        before = int(self.owner[row])
        self.owner[row] = broker
        for one in (before, broker):
            if one >= 0:
                self.changes[one] += 1
        self._sorted = self._sums = self._held = None
        if self._owned is not None:
            if broker >= 0:
                self._owned[self.names[row]] = self._trace.brokers[broker]
            else:
                self._owned.pop(self.names[row], None)

    def places(self, row: int) -> Sequence[int]:
        """Where its topics lie."""
        if row not in self._places:
            self._places[row] = topic_places(self.names[row], int(self.topics[row]))
        return self._places[row]

    def divide(self, row: int, parts: Sequence[BundleName]) -> list[int]:
        """Replaces the bundle by its parts, which have its topics and the same owner; the rows of the parts."""
        owner, places = int(self.owner[row]), self.places(row)
        held = [_inside(part, places) for part in parts]
        shares = [len(inside) / max(1, len(places)) for inside in held]
        rows = list(range(len(self.names), len(self.names) + len(parts)))
        self.give(row, NO_BROKER)
        self.counts[namespace_of(self.names[row])] += len(parts) - 1
        for new, part, inside in zip(rows, parts, held, strict=True):
            self.names.append(str(part))
            self.rows[str(part)] = new
            self._places[new] = inside
        count = len(parts)
        self.owner = np.append(self.owner, np.full(count, NO_BROKER))
        self.topics = np.append(self.topics, [len(inside) for inside in held])
        sessions = int(self.sessions[row])
        self.sessions = np.append(self.sessions, [round(sessions * share) for share in shares])
        self._origin = np.append(self._origin, np.full(count, self._origin[row]))
        self._share = np.append(self._share, self._share[row] * np.array(shares))
        self.rates = np.concatenate((self.rates, self.rates[:, [row]] * np.array(shares)), axis=1)
        self._owned = None
        for new in rows:
            self.give(new, owner)
        return rows


def _inside(bundle: BundleName, places: Sequence[int]) -> list[int]:
    first, last = bundle.edges
    return [one for one in places if first <= one < last or one == last == HASH_SPACE_END]


def numbered(brokers: Sequence[str]) -> Mapping[str, int]:
    return {name: number for number, name in enumerate(brokers)}
