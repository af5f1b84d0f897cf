"""Runs cases against a rig and judges each: what the log, the memory, a witness and bystanders say about it."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from harness.broker_process import RestFailed
from hostile import bystanders
from hostile.cases import FRAME, Case
from hostile.commands import Place
from hostile.evidence import Finding, LogTail, Memory
from hostile.link import Link, Refused, proof
from hostile.rig import MIB, Rig
from hostile.states import PLAIN, State
from hostile.witness import Starved, Witness

# Bounds. A turn of the loop has its own in the broker, which logs what exceeds it.
ANSWER_S: Final = 20.0
# What one command may add to the broker's memory at its highest. A frame is 5 MiB, and is held in a few forms at once.
COMMAND_BYTES_MAX: Final = 64 * MIB
# The broker as a whole, whatever was sent to it: 150 MiB of code and libraries, 16 MiB of cache, 64 MiB of unconfirmed
# entries, and what allocators keep.
BROKER_BYTES_MAX: Final = 512 * MIB
# What is told of one topic, which is also about what each checkpoint says of it.
STATS_BYTES_MAX: Final = 256 << 10
PUBLISH_P99_MS_MAX: Final = 50.0
# Cases that share a topic. If it is broken afterwards, each of them is a suspect.
CASES_PER_TOPIC: Final = 40
# Rates are looked at every ten seconds, everything else more often.
UPKEEP_S: Final = 12.0
# Two beats of the watch over the loop, and time for the line to be written.
BEAT_S: Final = 0.12
CONFIRMATIONS: Final = 2
# The broker logs turns of more than 50 ms of processor time, which a busy machine may double.
UNREPEATED_MS_MAX: Final = 100
_NAME: Final = re.compile(r"/(?:river-)?(t\d+)\b")


@dataclass
class Failure:
    finding: Finding
    cases: list[str]

    def __str__(self) -> str:
        if len(self.cases) == 1:
            return f"{self.finding}\n    --only '{self.cases[0]}'"
        return f"{self.finding}\n    one of {len(self.cases)} cases, the last of which are " + ", ".join(
            self.cases[-12:]
        )


@dataclass
class Ground:
    """A topic under attack, its witness, and the cases that it has seen."""

    state: State
    topic: str
    place: Place
    witness: Witness
    port: int  # At which the topic is served.
    cases: list[Case] = field(default_factory=list)


class BrokerLost(Exception):
    """The broker does not answer any more, or has ended: it must be started again."""


class Attack:
    """`tell` is given each new kind of failure as it is found."""

    def __init__(self, rig: Rig, *, tell: Callable[[str], None] = print) -> None:
        self.rig = rig
        self.failures: list[Failure] = []
        self.done = 0
        self.skipped = 0
        self.latencies_ms: list[float] = []
        self.peak_bytes = 0
        self.turn_ms = 0.0  # The longest turn of the last minute of each round, of processor time.
        self.published = 0
        self.unconfirmed: Counter[str] = Counter()
        self._tell = tell
        self._numbers = 0
        self._grounds: dict[str, Ground] = {}
        self._left: list[Ground] = []  # Of this round, to be looked at after the kill.
        self._seen: Counter[tuple[str, str]] = Counter()
        self._deadly: set[tuple[str, str]] = set()
        self._tail = LogTail(rig.folder / "broker.log")
        self._memory = Memory(rig.pids)
        self._ports = rig.ports
        self._resident = 0
        self._before: Case | None = None
        self._is_lost = False
        self._others: dict[int, Link] = {}  # A connection to each broker.

    @property
    def longest_turn_ms(self) -> tuple[int, int]:
        """In all, and of processor time, of the turns that were logged as slow."""
        return self._tail.longest_ms, self._tail.longest_cpu_ms

    # -- cases

    def run(self, case: Case) -> list[Finding]:
        """Carries out one case. Failures are kept; what was found of this very case is returned, too."""
        if self._shape(case) in self._deadly:
            self.skipped += 1
            return []
        self.done += 1
        try:
            found = self._attempt(case)
        except BrokerLost as error:
            return [self._lost(case, error)]
        # The turn that is told while it lasts is told again when it has ended.
        found = [one for one in found if one.kind != "held"]
        late = [one for one in found if one.kind in ("slow turn", "traceback", "error")]
        found = [one for one in found if one not in late]
        for one in found:
            self._fail(one, [case])
        if found:
            # This case did harm, and needs no second try.
            found += [self._fail(one, [case]) for one in late]
            self._before = case
            return found
        suspects = [case] if self._before is None else [case, self._before]
        self._before = case
        try:
            for one in late:
                found += self._confirm(one, suspects)
        except BrokerLost as error:
            found.append(self._lost(case, error))
        return found

    def _lost(self, case: Case, error: BrokerLost) -> Finding:
        self._deadly.add(self._shape(case))
        self._is_lost = True
        held = [one.place for one in self._tail.look() if one.kind == "held"]
        return self._fail(Finding("broker lost", held[-1] if held else case.command, str(error)), [case])

    def _shape(self, case: Case) -> tuple[str, str]:
        return case.command, "+".join(map(str, case.changes))

    def _attempt(self, case: Case) -> list[Finding]:
        found: list[Finding] = []
        try:
            ground = self._ground(case.state)
        except (Starved, Refused, OSError) as error:
            self._ping()
            return [Finding("new topic", case.state.name, f"{type(error).__name__}: {error}")]
        found += self._grown("between commands")
        try:
            self._send(case, ground)
        except (Refused, Starved) as error:
            self._ping()
            found.append(Finding("state", case.state.name, str(error)))
        try:
            ground.witness.check(reads=case.state.is_transparent)
        except (Starved, Refused) as error:
            self._ping()
            found.append(Finding("starved", f"{case.state.domain} topic", str(error)))
            self._leave(case.state.name)
        found += self._grown(f"of {case.command}")
        found += self._tail.look()
        if not self._memory.are_alive:
            raise BrokerLost("a process has ended")
        if len(ground.cases) >= CASES_PER_TOPIC:
            self._leave(case.state.name)
        return found

    def _grown(self, what: str) -> list[Finding]:
        """What the broker's memory was at its highest since the last look, if that is too much."""
        peak = self._memory.peak
        grown, self._resident = peak - self._resident, self._memory.resident
        self._memory.forget_peak()
        self.peak_bytes = max(self.peak_bytes, peak)
        found = []
        if grown > COMMAND_BYTES_MAX:
            found.append(Finding("memory", what, f"{grown // MIB} MiB more at once"))
        if peak > BROKER_BYTES_MAX * self.rig.brokers:
            found.append(Finding("memory", "of the broker", f"{peak // MIB} MiB"))
        return found

    def _watch_memory(self) -> None:
        self._ports = self.rig.ports
        self._memory = Memory(self.rig.pids)
        self._memory.forget_peak()
        self._resident = self._memory.resident

    def _send(self, case: Case, ground: Ground) -> None:
        self._numbers += 1
        ground.cases.append(case)
        state = case.state
        if state.consumes:
            ground.witness.leave_one()
        with Link(self._port(ground)) as link:
            try:
                if state.is_connected:
                    link.sign_in(state.role)
                opened = state.open(link, ground.place, str(self._numbers))
            except (OSError, TimeoutError) as error:
                self._ping()
                raise Refused(f"the state cannot be reached: {type(error).__name__}: {error}") from error
            data = opened.before + case.frames(opened.place, opened.producer or "hostile")
            link.socket.settimeout(ANSWER_S)
            try:
                link.send_bytes(data)
            except TimeoutError:
                raise BrokerLost(
                    f"it does not read: {len(data)} bytes were not taken in {ANSWER_S:.0f} s"
                ) from None
            except OSError:
                return  # Refused while it was being sent.
            if case.command == FRAME or not state.is_connected:
                # Behind such bytes nothing is understood any more, so nothing can be asked on this connection.
                self._ping()
                return
            try:
                link.settle(ANSWER_S)
            except TimeoutError:
                self._ping()
                # Others are served. Whoever is being paced or whose requests wait is not answered, as is due.

    def _port(self, ground: Ground) -> int:
        """Of several brokers the owner of the topic, or each in its turn for what any broker may be sent."""
        is_anywhere = ground.state.is_anywhere
        return self._ports[self._numbers % len(self._ports)] if is_anywhere else ground.port

    def _ping(self) -> None:
        """BrokerLost if another connection is not served, at any broker."""
        if not self._memory.are_alive:
            raise BrokerLost("a process has ended")
        try:
            for port in self._ports:
                if port not in self._others:
                    self._others[port] = Link(port)
                    self._others[port].sign_in(bystanders.ROLE)
                if not self._others[port].settle(ANSWER_S):
                    raise BrokerLost("another connection was closed")
        except (OSError, TimeoutError) as error:
            raise BrokerLost(f"nobody is served: {type(error).__name__}: {error}") from error

    # -- findings

    def _fail(self, finding: Finding, cases: Sequence[Case]) -> Finding:
        key = (finding.kind, finding.place)
        self._seen[key] += 1
        names = [case.name for case in cases]
        if self._seen[key] <= 3:
            self.failures.append(Failure(finding, names))
            self._tell(f"FAILED {self.failures[-1]}")
        return finding

    def count(self) -> Counter[tuple[str, str]]:
        """How often each kind of failure was found."""
        return self._seen

    def _confirm(self, finding: Finding, suspects: Sequence[Case]) -> list[Finding]:
        """What the log says comes a moment late, and a busy machine makes turns slow: a case must do it again."""
        key = (finding.kind, finding.place)
        if self._seen[key] >= 3:
            self._seen[key] += 1
            return []
        for case in suspects:
            if all(self._repeats(case, finding) for _ in range(CONFIRMATIONS)):
                return [self._fail(finding, [case])]
        if finding.kind == "slow turn":
            self._unrepeated(finding, suspects)
            return []
        return [self._fail(finding, self._named(finding) or suspects)]

    def _unrepeated(self, finding: Finding, suspects: Sequence[Case]) -> None:
        """A turn that no command repeats is upkeep, several commands in one turn, or a machine that is busy."""
        if finding.cpu_ms > UNREPEATED_MS_MAX:
            self._fail(finding, suspects)
        else:
            self.unconfirmed[str(finding)] += 1

    def _named(self, finding: Finding) -> list[Case]:
        """The cases that were tried on the topic which the finding names, if it names one."""
        names = set(_NAME.findall(finding.detail))
        grounds = (*self._grounds.values(), *self._left)
        return [case for one in grounds if names & set(_NAME.findall(one.topic)) for case in one.cases]

    def _repeats(self, case: Case, finding: Finding) -> bool:
        self._tail.look()
        try:
            again = self._attempt(case)
        except BrokerLost:
            self._deadly.add(self._shape(case))  # Of the two suspects it is this one.
            raise
        time.sleep(BEAT_S)  # The watch writes its line after the turn.
        again += self._tail.look()
        if finding.kind == "slow turn":
            # Where the loop was looked at is chance.
            return any(one.kind == finding.kind for one in again)
        return any((one.kind, one.place) == (finding.kind, finding.place) for one in again)

    # -- topics

    def _ground(self, state: State) -> Ground:
        found = self._grounds.get(state.name)
        if found is None:
            found = self._grounds[state.name] = self._new_ground(state)
        return found

    def _new_ground(self, state: State) -> Ground:
        self._numbers += 1
        name = f"t{self._numbers}"
        river = f"topic://{PLAIN}/river-{name}"
        topic = f"{state.domain}://{state.namespace}/{name}"
        if state.domain == "segment" or state.name == "watching":
            self.rig.make_scalable(f"river-{name}")
        if state.domain == "segment":
            topic = f"segment://{PLAIN}/river-{name}/0000-ffff-0"
        port = self.rig.port_of(topic)
        place = Place(topic, state.namespace, river, proof(state.role))
        witness = Witness(
            port,
            topic,
            reads_compacted=state.domain == "persistent" and state.is_transparent,
            stays=state.is_shared,
        )
        witness.check(reads=state.domain != "non-persistent")
        return Ground(state, topic, place, witness, port)

    def _leave(self, state: str) -> None:
        """The topic has seen enough. Whatever clients left behind on it is looked for."""
        ground = self._grounds.pop(state, None)
        if ground is None:
            return
        self._left.append(ground)
        ground.witness.close()
        for finding in self._leaks(ground):
            if self._seen[finding.kind, finding.place] < 3:
                cases = self._narrow(ground.state, ground.cases, lambda other: any(self._leaks(other)))
            else:
                cases = ground.cases
            self._fail(finding, cases)

    def _leaks(self, ground: Ground) -> Iterable[Finding]:
        deadline = time.monotonic() + 5
        while True:
            try:
                stats = self.rig.stats(ground.topic)
            except (OSError, RestFailed):
                return []
            found: list[Finding] = []
            size = len(str(stats))
            if size > STATS_BYTES_MAX:
                found.append(Finding("bloat", "what a topic keeps of its clients", f"{size} bytes of stats"))
            # A seek closes the consumers of a reader, which is given a minute to come back.
            has_sought = any(case.command.startswith("SEEK") for case in ground.cases)
            left = [
                name
                for name, one in stats.get("subscriptions", {}).items()
                if one.get("isDurable") is False
                and not one.get("consumers")
                and not (has_sought and name.startswith("attacked"))
            ]
            if left:
                found.append(Finding("leak", "subscriptions that nobody reads", f"{len(left)}: {left[:3]}"))
            if stats.get("publishers"):
                found.append(
                    Finding("leak", "producers whose connection is gone", str(len(stats["publishers"])))
                )
            # Connections that were closed just now are still being cleared away.
            if not any(one.kind == "leak" for one in found) or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    # -- rounds

    def begin_round(self) -> None:
        self.rig.invite()
        self._watch_memory()

    def linger(self) -> None:
        """Until everything that looks after topics by itself has looked at what a single case has left."""
        end = time.monotonic() + UPKEEP_S
        while time.monotonic() < end and self.rig.broker.is_running:
            time.sleep(0.2)

    def end_round(self) -> None:
        """All that was acknowledged to bystanders has been read, and is there after kill -9; so are attacked topics."""
        is_up = self._memory.are_alive and not self._is_lost
        self._is_lost = False
        if is_up:
            for state in list(self._grounds):
                with contextlib.suppress(BrokerLost):
                    self._leave(state)
        cases = [case for ground in (*self._left, *self._grounds.values()) for case in ground.cases]
        for ground in self._grounds.values():
            ground.witness.close()
        self._left += self._grounds.values()
        self._grounds = {}
        if is_up:
            told = self.rig.ask("check")
            self.latencies_ms += told["latencies_ms"]
            self.turn_ms = max(self.turn_ms, self.rig.longest_turn_ms())
            self.published += told["published"]
            for trouble in (*told["unread"], *told["trouble"]):
                self._fail(Finding("bystander", "has trouble", trouble), cases)
            for finding in (*self._grown("between commands"), *self._tail.look()):
                self._fail_late(finding, cases)
            self.rig.go_on()
            time.sleep(0.3)  # Bystanders are in the middle of publishing when the broker is killed.
        self.restart()
        for loss in list(self.rig.losses())[:10]:
            self._fail(Finding("lost", "what was acknowledged", loss), cases)
        left, self._left = self._left, []
        for ground in left:
            if ground.state.domain != "non-persistent":
                self._reopen(ground)
        for ground in left:
            with contextlib.suppress(RestFailed, OSError):
                self.rig.drop(ground.topic)
        for finding in self._tail.look():
            self._fail_late(finding, cases)
        self._before = None

    def _fail_late(self, finding: Finding, cases: Sequence[Case]) -> None:
        if finding.kind == "slow turn":
            self._unrepeated(finding, cases)
        elif finding.kind != "held":
            self._fail(finding, self._named(finding) or cases)

    def restart(self) -> None:
        """kill -9, and what comes after it. Bystanders end with their connections."""
        self.rig.broker.kill()
        self.rig.dismiss()
        for other in self._others.values():
            other.socket.close()
        self._others = {}
        self.rig.broker.start()
        self._watch_memory()

    def _reopen(self, ground: Ground) -> None:
        finding = self._opens(ground)
        if finding is not None:
            if self._seen[finding.kind, finding.place] < 3:
                cases = self._narrow(ground.state, ground.cases, self._is_broken)
            else:
                cases = ground.cases
            self._fail(finding, cases)

    def _is_broken(self, ground: Ground) -> bool:
        self.restart()
        return self._opens(ground) is not None

    def _opens(self, ground: Ground) -> Finding | None:
        """After a restart, everybody can use the topic again."""
        try:
            witness = Witness(
                self.rig.port_of(ground.topic),
                ground.topic,
                reads_compacted=False,
                stays=True,
                patience_s=15 if ground.state.is_transparent else 30,
            )
            try:
                witness.check()
            finally:
                witness.close()
        except (Starved, Refused, OSError, TimeoutError) as error:
            return Finding(
                "broken topic", ground.state.name, f"{ground.topic}: {type(error).__name__}: {error}"
            )
        return None

    def _narrow(self, state: State, cases: list[Case], is_harmed: Callable[[Ground], bool]) -> list[Case]:
        """The case that does harm to a topic, by halves. Several, if none does it alone."""
        suspects = cases
        while len(suspects) > 1:
            half = suspects[: len(suspects) // 2]
            if self._harms(state, half, is_harmed):
                suspects = half
            elif self._harms(state, rest := suspects[len(half) :], is_harmed):
                suspects = rest
            else:
                break
        return suspects

    def _harms(self, state: State, cases: list[Case], is_harmed: Callable[[Ground], bool]) -> bool:
        try:
            ground = self._new_ground(state)
            for case in cases:
                with contextlib.suppress(Refused, Starved):
                    self._send(case, ground)
            ground.witness.close()
        except (BrokerLost, Starved, Refused, OSError, TimeoutError):
            return False
        return is_harmed(ground)
