"""The leader's recorded decisions, decided again from the recorded reports: each must come out the same. Pure.

What load history has of the balancer is enough: reports in the order in which the leader took them, and with each
decision what it depended on besides. Two things are not recorded. The policies that bind bundles to brokers are not, so
decisions under such are left out. What a leader knew when its leadership began is not, so that its first decision only
tells where it stood.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from anabranch.balance.core.load import BrokerLoad, TopBundles
from anabranch.balance.core.owner_rules import no_rules
from anabranch.balance.core.settings import KEYS, BalanceSettings, SplitAlgorithm
from anabranch.balance.core.shed import shed
from anabranch.balance.core.shed_verdict import ClusterLoad, ShedState, ShedVerdict
from anabranch.broker.scalable.load.balance_records import BrokerReported, ShedMade
from anabranch.broker.scalable.load.history_records import HistoryRecord
from anabranch.pipelines.replay.trace import BadTrace


@dataclass(frozen=True, slots=True)
class DecidedAgain:
    """A recorded decision, and what the rule decides now."""

    at_ms: int
    recorded: ShedMade
    verdict: ShedVerdict
    # Of a leadership, or of the record: what was known before is not recorded.
    is_first: bool

    @property
    def difference(self) -> str | None:
        """How the two differ; None if they do not."""
        told, verdict = self.recorded, self.verdict
        pairs = {
            "label": (told.label, "" if verdict.label is None else verdict.label.value),
            "reason": (told.because, verdict.because),
            "moves": (
                [(one.bundle, one.source, one.destination, one.because) for one in told.moves],
                [(one.bundle, one.source, one.destination or "", one.because) for one in verdict.moves],
            ),
            "hits": (told.hits, verdict.state.hits),
            "deviation": ((told.std, told.std_after), (verdict.std, verdict.std_after)),
        }
        found = [
            f"{name}: {was!r} was recorded, {now!r} comes now"
            for name, (was, now) in pairs.items()
            if was != now
        ]
        return "; ".join(found) or None


def settings_of(text: str) -> BalanceSettings:
    """The settings that a decision was recorded with. Keys that are not known are passed over; those that are missing
    have their defaults."""
    try:
        told = json.loads(text)
    except ValueError as error:
        raise BadTrace(f"the settings of a decision are no JSON: {error}") from None
    usual = BalanceSettings()
    known: dict[str, Any] = {
        name: _as(getattr(usual, name), told[key]) for name, key in KEYS.items() if key in told
    }
    return replace(usual, **known)


def _as(usual: Any, value: Any) -> Any:
    match usual:
        case SplitAlgorithm():
            return SplitAlgorithm(value)
        case frozenset():
            return frozenset(value)
        case tuple():
            return tuple(map(SplitAlgorithm, value))
        case _:
            return value


def decided_again(records: Iterable[HistoryRecord]) -> Iterator[DecidedAgain]:
    """Decides again, in the order of the records, which is that of the topic. Other records are passed over."""
    leader = _Leader()
    for record in records:
        if record.broker_load is not None:
            leader.pending.append((record.at, record.broker_load))
        elif record.moved is not None:
            moved = record.moved
            leader.state = leader.state.noted(
                moved.bundle, moved.source, moved.destination or None, record.at
            )
        elif record.shed is not None:
            found = leader.decide(record.at, record.shed)
            if found is not None:
                yield found


class _Leader:
    def __init__(self) -> None:
        self.state = ShedState()
        self.pending: list[tuple[int, BrokerReported]] = []
        self._loads: dict[str, BrokerLoad] = {}
        self._tops: dict[str, TopBundles] = {}
        self._term: int | None = None

    def decide(self, at_ms: int, told: ShedMade) -> DecidedAgain | None:
        self._take(at_ms)
        is_first = told.term != self._term
        self._term = told.term
        loads = {broker: load for broker, load in self._loads.items() if broker in told.brokers}
        tops = {broker: top for broker, top in self._tops.items() if broker in told.brokers}
        view = ClusterLoad(
            now_ms=at_ms,
            brokers=told.brokers,
            loads=loads,
            tops=tops,
            owners=_owners(tops, frozenset(told.unowned)),
            rules=no_rules(told.brokers),
        )
        verdict = shed(view, self.state, settings_of(told.settings))
        found = DecidedAgain(at_ms, told, verdict, is_first)
        if is_first or told.has_rules:
            self._believe(at_ms, told)
        else:
            self.state = verdict.state
        for bundle in told.failed:
            self.state = self.state.forgot(bundle)
        return None if told.has_rules else found

    def _take(self, at_ms: int) -> None:
        """Takes the reports that the decision can have seen: it is recorded after its moves were begun, and later
        reports may come before its record."""
        later = []
        for measured_ms, one in self.pending:
            if measured_ms > at_ms:
                later.append((measured_ms, one))
            else:
                self._loads[one.broker], self._tops[one.broker] = one.report(measured_ms)
        self.pending = later

    def _believe(self, at_ms: int, told: ShedMade) -> None:
        """Continues from what was decided then, whatever the rule says now."""
        state = self.state
        for move in told.moves:
            state = state.noted(move.bundle, move.source, move.destination or None, at_ms)
        self.state = replace(state, hits=told.hits, acted_ms=at_ms if told.moves else state.acted_ms)


def _owners(tops: Mapping[str, TopBundles], unowned: frozenset[str]) -> dict[str, str]:
    """The owners of the bundles in the reports. Where two brokers report one, the earlier report is out of date."""
    reporters: dict[str, list[tuple[int, str]]] = {}
    for broker, top in tops.items():
        for one in top.bundles:
            reporters.setdefault(one.bundle, []).append((top.measured_ms, broker))
    return {
        bundle: max(found)[1]
        for bundle, found in reporters.items()
        if bundle not in unowned or len(found) > 1
    }
