"""The facts that a decision about shedding is made from, what is kept between two cycles, and the possible results:
plain values. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from anabranch.balance.core.load import BrokerLoad, TopBundles
from anabranch.balance.core.owner_rules import OwnerRules
from anabranch.balance.core.settings import BalanceSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLoad:
    """The cluster as its leader sees it at one moment."""

    now_ms: int
    # The living brokers that are not about to end: only they give and get bundles.
    brokers: Collection[str]
    loads: Mapping[str, BrokerLoad]
    tops: Mapping[str, TopBundles]
    # The owner of each bundle that is assigned. Bundles in flight are left out, and so are not moved.
    owners: Mapping[str, str]
    rules: OwnerRules


class ShedReason(StrEnum):
    """Why a bundle moves, by Pulsar's labels."""

    OVERLOADED = "Overloaded"
    UNDERLOADED = "Underloaded"


class NoShed(StrEnum):
    """Why nothing moves, as a label for counters; the first seven are Pulsar's."""

    HIT_COUNT = "HitCount"
    NO_BUNDLES = "NoBundles"
    COOL_DOWN = "CoolDown"
    OUTDATED = "OutDatedData"
    NO_LOAD = "NoLoadData"
    NO_BROKERS = "NoBrokers"
    UNKNOWN = "Unknown"
    OFF = "Off"
    BALANCED = "Balanced"
    # Of single brokers and bundles.
    LIMIT = "Limit"
    NOT_OWNED = "NotOwned"
    EXCLUDED = "Excluded"
    POLICIES = "Policies"
    RECENT = "RecentlyMoved"
    IDLE = "Idle"
    HEAVY = "TooHeavy"
    RETURN = "WouldReturn"
    FULL = "Full"


@dataclass(frozen=True, slots=True)
class BundleMove:
    """One bundle that leaves its owner."""

    bundle: str
    source: str
    # None is a plain unload: the next lookup assigns it.
    destination: str | None
    # What the bundle contributes to the load of its source, as an estimate.
    load: float
    reason: ShedReason
    because: str
    # One of a swap: moves the other way make room for the heavier one.
    is_swap: bool = False


@dataclass(frozen=True, slots=True)
class NotMoved:
    """A broker or bundle that was looked at and left alone."""

    what: str
    label: NoShed
    because: str


@dataclass(frozen=True, slots=True)
class LastMove:
    at_ms: int
    source: str


@dataclass(frozen=True, slots=True)
class ShedState:
    """What the leader remembers from one cycle to the next. A new leader makes one with `remembered`."""

    # In how many cycles in a row shedding was due.
    hits: int = 0
    # When the balancer last moved anything.
    acted_ms: int | None = None
    # By bundle.
    moves: Mapping[str, LastMove] = field(default_factory=dict)
    # When each broker last gave or got a bundle.
    touched_ms: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def remembered(cls, moves: Iterable[tuple[str, str, str | None, int]]) -> ShedState:
        """The state of a leader that reads (bundle, source, destination, when) of late moves, as from the channel."""
        state = cls()
        for bundle, source, destination, at_ms in sorted(moves, key=lambda one: one[3]):
            state = state.noted(bundle, source, destination, at_ms)
            state = replace(state, acted_ms=at_ms)
        return state

    def noted(self, bundle: str, source: str, destination: str | None, at_ms: int) -> ShedState:
        """The state after a move that was not decided here: by an operator, or after a split."""
        touched = {one: at_ms for one in (source, destination) if one is not None}
        return replace(
            self,
            moves={**self.moves, bundle: LastMove(at_ms, source)},
            touched_ms={**self.touched_ms, **touched},
        )

    def forgot(self, bundle: str) -> ShedState:
        """The state after a move that did not happen: its bundle may move in the next cycle."""
        return replace(self, moves={name: one for name, one in self.moves.items() if name != bundle})

    def pruned(self, now_ms: int, settings: BalanceSettings) -> ShedState:
        """Without what no longer matters, so that the state stays as small as the moves of late."""
        kept = 2 * settings.shedding_grace_ms
        moves = {name: one for name, one in self.moves.items() if now_ms - one.at_ms < kept}
        touched = {name: at_ms for name, at_ms in self.touched_ms.items() if now_ms - at_ms < kept}
        if len(moves) == len(self.moves) and len(touched) == len(self.touched_ms):
            return self
        return replace(self, moves=moves, touched_ms=touched)


@dataclass(frozen=True, slots=True)
class ShedVerdict:
    """The moves of one cycle in the order in which they are to be made, or why there are none."""

    moves: tuple[BundleMove, ...]
    because: str
    # None if there are moves.
    label: NoShed | None
    not_moved: tuple[NotMoved, ...]
    state: ShedState
    # Mean and standard deviation of the loads, and the deviation that the moves lead to.
    mean: float = 0.0
    std: float = 0.0
    std_after: float = 0.0
