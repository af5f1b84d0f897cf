"""The laws of the bundle state channel, checked whenever a state of a bundle, a leader's term or the boundaries of a
namespace are stored.

Every state follows from the one before; no leader that was replaced begins anything; every broker's fold has states
that were stored, and never an older one than before; a broker serves only topics of bundles that are its own, by its
run id; no boundary is shown before the channel has the bundles beside it. In calm weather every bundle gets a living
owner, and nothing stays in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from anabranch.balance.core.codec import decode_change
from anabranch.balance.core.fold import Fold
from anabranch.balance.core.states import SEMI_TERMINAL, BrokerRun, BundleChange, BundleState
from anabranch.broker.balance.balancer import Balancer
from anabranch.broker.balance.channel.metadata_state_log import BUNDLE_STATES, NEWEST_TERM
from anabranch.broker.broker import Broker
from anabranch.broker.catalog.resources import NAMESPACES
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.model.bundles import BundleName, BundleRanges, is_range
from anabranch.model.leaders_topics import is_leaders
from anabranch.model.names import InvalidName, NamespaceName, TopicName
from anabranch.simulation.world.laws import Peek, Unlawful

# How long a leader takes to repair what it has found.
REPAIR_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Waits:
    """The settings of the run's brokers, and how long sessions outlive brokers."""

    in_flight_s: float
    look_every_s: float
    stable_s: float
    session_s: float

    @property
    def until_repaired_s(self) -> float:
        """In calm weather no state is in flight for longer."""
        return self.in_flight_s + self.look_every_s + REPAIR_S

    @property
    def until_watched_s(self) -> float:
        """So long after the last fault the leader may repair anything."""
        return self.stable_s + self.session_s

    @property
    def until_owned_s(self) -> float:
        """So long after the last fault every bundle has an owner."""
        return 5.0 + self.until_watched_s + self.until_repaired_s


class ChannelLaws:
    """`running` has the brokers that run now; `now_ms` is the clock of all; `found` is told of violations."""

    def __init__(
        self,
        peek: Peek,
        running: Callable[[], Iterable[Broker]],
        now_ms: Callable[[], int],
        waits: Waits,
        found: Callable[[str], None],
    ) -> None:
        self._peek = peek
        self._running = running
        self._now_ms = now_ms
        self._waits = waits
        self._found = found
        self._states: dict[BundleName, BundleChange] = {}
        # When each change was stored, in their order.
        self._numbers: dict[BundleChange, int] = {}
        # The split that has made a bundle.
        self._splits: dict[BundleName, BundleChange] = {}
        self._ranges: dict[NamespaceName, BundleRanges] = {}
        self._term = self._term_since_ms = 0
        # How far each run of a broker has come with each bundle.
        self._seen: dict[str, dict[BundleName, int]] = {}
        # Since when there are no faults.
        self.calm_since_ms: int | None = None

    @property
    def states(self) -> Mapping[BundleName, BundleChange]:
        return self._states

    # -- what is stored

    def look(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                if path.startswith(f"{BUNDLE_STATES}/"):
                    self._state_stored(path)
                elif path == NEWEST_TERM:
                    self._term_stored(int(self._peek(path) or b"0"))
                elif path.startswith(f"{NAMESPACES}/"):
                    self._boundaries_stored(path)
            except Unlawful as error:
                self._found(str(error))
        self._check_brokers()

    def _state_stored(self, path: str) -> None:
        name = path.removeprefix(f"{BUNDLE_STATES}/")
        if not is_range(name.rpartition("/")[2]):
            return  # A folder.
        bundle = BundleName.parse(name)
        value, before = self._peek(path), self._states.get(bundle)
        if value is None:
            if before is not None:
                raise Unlawful(f"{bundle}: its state was deleted while it was {before.state}")
            return
        change = decode_change(str(bundle), value)
        split = self._splits.get(bundle)
        if change.state is BundleState.SPLITTING:
            self._splits.update(dict.fromkeys(change.children, change))
        if change.state is None:
            self._states.pop(bundle, None)
        else:
            self._states[bundle] = change
        self._numbers[change] = len(self._numbers) + 1
        # The author may have checked the state of the parent a moment ago.
        refused = Fold.restored(0, [one for one in (split, before) if one is not None]).why_not(change)
        if refused is not None:
            raise Unlawful(f"{bundle}: {change.action} by {change.author.broker} was stored: {refused}")
        if change.term and change.term < self._term and change.at_ms > self._term_since_ms:
            raise Unlawful(
                f"{bundle}: the leader of term {change.term} began {change.action} in term {self._term}"
            )
        if before is not None and before.is_in_flight and (left := self._too_long(before)) is not None:
            raise Unlawful(left)

    def _term_stored(self, term: int) -> None:
        if term <= self._term:
            raise Unlawful(f"the newest term was {self._term} and is {term}")
        self._term, self._term_since_ms = term, self._now_ms()

    def _boundaries_stored(self, path: str) -> None:
        try:
            namespace = NamespaceName.parse(path.removeprefix(f"{NAMESPACES}/"))
        except InvalidName:
            return  # The folder of a tenant.
        value, before = self._peek(path), self._ranges.get(namespace)
        if not value:
            self._ranges.pop(namespace, None)
            return
        ranges = self._ranges[namespace] = NamespacePolicies.decode(value).bundles.ranges
        if before is None or before == ranges:
            return
        for bundle in sorted(set(ranges.bundles(namespace)) - set(before.bundles(namespace))):
            if bundle not in self._states:
                raise Unlawful(f"{bundle} is within the boundaries of its namespace, and not in the channel")

    # -- what brokers make of it

    def _check_brokers(self) -> None:
        for broker, balancer in self._balanced():
            me = broker.registry.me
            seen = self._seen.setdefault(me.run_id, {})
            for bundle, change in balancer.states.fold.bundles.items():
                number = self._numbers.get(change)
                if number is None:
                    self._found(f"{me.id} believes {bundle} to be {change}, which was never stored")
                elif number < seen.get(bundle, 0):
                    self._found(f"{me.id} has forgotten a later state of {bundle} than {change}")
                else:
                    seen[bundle] = number
            for name, topic in broker.loaded().items():
                if not topic.is_closed:
                    self._check_owner(balancer, name, BrokerRun(me.id, me.run_id))

    def _check_owner(self, balancer: Balancer, topic: TopicName, me: BrokerRun) -> None:
        bundle = balancer.owners.bundle(topic)
        if bundle is None or not balancer.owners.is_mine(topic):
            return
        now = balancer.states.fold.get(bundle)
        named = None if now is None or now.to is None else (now.to.broker, now.to.run)
        if named != (me.broker, me.run):
            self._found(f"{me} of run {me.run} serves {topic}, and its bundle is {now}")

    def _balanced(self) -> Iterator[tuple[Broker, Balancer]]:
        for broker in self._running():
            if broker.balancer is not None:
                yield broker, broker.balancer

    # -- calm weather

    def _too_long(self, now: BundleChange) -> str | None:
        """Why the state has been in flight for too long, if it has."""
        if self.calm_since_ms is None:
            return None
        begun_ms = max(now.at_ms, self.calm_since_ms + self._waits.until_watched_s * 1000)
        seconds = (self._now_ms() - begun_ms) / 1000
        if seconds <= self._waits.until_repaired_s:
            return None
        return f"{now.bundle} has been {now.state} for {seconds:.1f} calm seconds: {now}"

    def _compared(self, states: Mapping[BundleName, BundleChange]) -> dict[BundleName, BundleChange]:
        """What all brokers must have read alike in calm weather."""
        return dict(states)

    def read(self) -> str | None:
        """Brings what is known of the stored states up to date; why they are not known, if so."""
        return None

    def unsettled(self, used: Iterable[TopicName]) -> str | None:
        """What the leader has not repaired yet, or the brokers have not read; None if every bundle of a namespace is
        well, and those of the topics in use have owners."""
        if (unknown := self.read()) is not None:
            return unknown
        living = {BrokerRun(one.registry.me.id, one.registry.me.run_id) for one in self._running()}
        there = {one for namespace, ranges in self._ranges.items() for one in ranges.bundles(namespace)}
        for bundle, now in sorted(self._states.items()):
            if now.is_in_flight:
                return f"{bundle} is {now}"
            if now.state is BundleState.ASSIGNED and now.to not in living:
                return f"{bundle} has no living owner: {now}"
            if (now.state is BundleState.DELETED) == (bundle in there) and now.state is not BundleState.FREED:
                return f"{bundle} is {now}, and {'is' if bundle in there else 'is not'} of its namespace"
        for topic in used:
            bundle = self._ranges[topic.namespace].of(topic)
            found = self._states.get(bundle)
            if found is None or found.state is not BundleState.ASSIGNED:
                return f"{bundle} of {topic} has no owner: {found}"
        for broker, balancer in self._balanced():
            if self._compared(balancer.states.fold.bundles) != self._compared(self._states):
                return f"{broker.registry.me.id} has other states than those stored"
        return None


class TopicLaws(ChannelLaws):
    """The laws where the channel is a topic. What is stored is in the leader's log, where the leader and every reader
    check each change: these laws check what brokers make of it.

    Whenever metadata are stored, a broker serves only topics of bundles that are its own, and no bundle has two owners
    among the newest states that brokers have read. In calm weather the leader's states are those of all, every bundle
    gets a living owner, and nothing stays in flight."""

    def _boundaries_stored(self, path: str) -> None:
        for _, balancer in self._balanced():
            self._states.update(balancer.states.fold.bundles)
        super()._boundaries_stored(path)

    def _check_brokers(self) -> None:
        newest: dict[BundleName, BundleChange] = {}
        for broker, balancer in self._balanced():
            me = broker.registry.me
            for name, topic in broker.loaded().items():
                # The channel's own topic belongs to the leader, and to no bundle.
                if not topic.is_closed and not is_leaders(name):
                    self._check_owner(balancer, name, BrokerRun(me.id, me.run_id))
            for bundle, change in balancer.states.fold.bundles.items():
                other = newest.setdefault(bundle, change)
                if other.version == change.version and other.at_ms == change.at_ms and other != change:
                    self._found(f"{bundle}: {me.id} has read {change}, another broker {other}")

    def _compared(self, states: Mapping[BundleName, BundleChange]) -> dict[BundleName, BundleChange]:
        # A leader forgets semi-terminal states in calm weather too, and the others read of it a moment later.
        return {bundle: now for bundle, now in states.items() if now.state not in SEMI_TERMINAL}

    def read(self) -> str | None:
        for _, balancer in self._balanced():
            if balancer.reign.term and balancer.states.is_following:
                self._states = dict(balancer.states.fold.bundles)
                return None
        return "no broker leads and has read the channel"
