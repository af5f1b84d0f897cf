"""Splits, merges and rebuckets the scalable topics that this broker leads automatically: the shell around
`autoscale.decide`.

A topic is evaluated every interval, at once when a consumer joins or leaves (for the consumer rule alone), and again at
the moment that a verdict names, such as a cooldown's end. Each topic has one evaluation at a time, and none while an
operation is under way: the evaluation follows it. Loads come from one watch for all topics; a topic's load records are
read together, after one of them changed. An idle topic costs one evaluation every interval and nothing between.

Times are the store's. Cooldowns are stored in the layout, so a new leader keeps those of its predecessor.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from anabranch.autoscale.decide import (
    MAX_DEPTH,
    MAX_SEGMENTS,
    Merge,
    NoMerge,
    NoRebucket,
    Observation,
    Rebucket,
    Reshape,
    Stay,
    Verdict,
)
from anabranch.autoscale.decisions import Decision, DecisionKind
from anabranch.autoscale.load import Load, LoadReport
from anabranch.autoscale.policy import InvalidPolicy, Resolved, ScalePolicy, problems, resolve
from anabranch.controller.decision_log import DecisionLog
from anabranch.controller.feed import StalePart
from anabranch.controller.scaling import (
    DecisionListener,
    Explanation,
    Figures,
    ScalePolicySource,
    capacity_of,
    consumers_of,
    judged,
    named,
    record_of,
    request_for,
    segments_of,
    wants_more,
)
from anabranch.controller.service import ScalableTopics
from anabranch.controller.topic_controller import TopicController
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import MetadataError
from anabranch.metadata.port import SessionState
from anabranch.model.names import NamespaceName, TopicName
from anabranch.model.scalable import (
    BadRecord,
    PlanKind,
    ScalableTopic,
    loads_path,
    scalable_name,
    segment_of_load_path,
)
from anabranch.model.segments import SegmentId

__all__ = ["AutoScaler", "Explanation", "Figures", "ScalePolicySource"]

log = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
# A tick yields to the loop after this many topics, so that ten thousand topics delay no publish.
TOPICS_PER_TURN: Final = 20
TURN_PAUSE_S: Final = 0.002
# The store's clock and the loop's differ: the next evaluation is never sooner than this.
LOOK_AGAIN_LEAST_S: Final = 0.01
SAVED_AT_ONCE: Final = 50


@dataclass(slots=True, eq=False)
class _Led:
    """A topic that this broker leads."""

    controller: TopicController
    decisions: DecisionLog
    load: dict[SegmentId, LoadReport] = field(default_factory=dict)
    is_load_stale: bool = True
    consumers: Mapping[str, int] = field(default_factory=dict)
    # When a consumer last left for good. A new leader counts from its first evaluation.
    left_ms: int = 0
    has_left: bool = True
    # What was requested since the last evaluation: nothing, the consumer rule, everything.
    wants_look: bool = False
    wants_all: bool = False
    is_looking: bool = False
    timer: asyncio.TimerHandle | None = None
    # Automatic operations, and those that only a cap has stopped.
    done: Counter[str] = field(default_factory=Counter)
    suppressed: Counter[str] = field(default_factory=Counter)
    rebuckets: int = 0  # By hand, too.
    problems: tuple[str, ...] = ()
    # The policy of the last evaluation, if it was not the broker's own.
    policy: ScalePolicy | None = None
    # The facts of the last full evaluation that found nothing to do, kept while they stay the same; and its verdict.
    facts: tuple[object, ...] | None = None
    stays: Stay | None = None

    @property
    def topic(self) -> TopicName:
        return self.controller.topic

    def want(self, *, everything: bool) -> None:
        self.wants_look = True
        self.wants_all = self.wants_all or everything


async def _always(topic: TopicName) -> bool:
    return True


class AutoScaler:
    """Evaluates the topics that this broker leads. Call `start` after the topics' service starts, `close` before it
    closes."""

    def __init__(
        self,
        topics: ScalableTopics,
        policies: ScalePolicySource,
        *,
        interval_s: float = INTERVAL_S,
        has_owner: Callable[[TopicName], Awaitable[bool]] = _always,
        listener: DecisionListener | None = None,
    ) -> None:
        """`has_owner` says whether a broker owns, and so measures, a `segment://` topic: the load of any other is no
        evidence."""
        self.interval_s = interval_s
        self._topics = topics
        self._metadata = topics.metadata
        self._policies = policies
        self._has_owner = has_owner
        self._listener = listener
        self._led: dict[TopicName, _Led] = {}
        # Most topics share one policy: the last checked policy, and its problems.
        self._checked: tuple[Resolved | None, tuple[str, ...]] = (None, ())
        # The results of evaluations, by namespace, counted by operation and reason, such as ("no_split", "cooldown").
        self.reasons: dict[NamespaceName, Counter[tuple[str, str]]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._loop = asyncio.get_running_loop()
        self._stop_listening: Callable[[], None] = lambda: None

    # -- life

    def start(self) -> None:
        self._topics.scaling = self
        self._stop_listening = self._topics.feed.listen_everywhere(self._load_changed, StalePart.LOAD)
        self._spawn(self._tick_always())

    async def close(self) -> None:
        self._topics.scaling = None
        self._stop_listening()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        unsaved = [led.decisions for led in self._led.values() if led.decisions.is_unsaved]
        for first in range(0, len(unsaved), SAVED_AT_ONCE):
            works = (decisions.save() for decisions in unsaved[first : first + SAVED_AT_ONCE])
            await asyncio.gather(*works, return_exceptions=True)
        for led in list(self._led.values()):
            self._drop(led)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        # The task is held in `_tasks` and cancelled by `close`.
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("autoscaler: a task failed: %r", error, exc_info=error)

    def _drop(self, led: _Led) -> None:
        if led.timer is not None:
            led.timer.cancel()
            led.timer = None
        led.decisions.close()
        if self._led.get(led.topic) is led:
            del self._led[led.topic]

    # -- what causes an evaluation

    def _load_changed(self, topic: TopicName | None) -> None:
        for led in list(self._led.values()) if topic is None else [self._led.get(topic)]:
            if led is not None:
                led.is_load_stale = True

    def settled(self, controller: TopicController) -> None:
        """A leader has begun, or an operation is over: requests that came meanwhile are evaluated now."""
        led = self._led.get(controller.topic)
        if led is None:
            led = self._led_by(controller)
            if led is None:
                return
            led.consumers = consumers_of(controller)
            if self._listener is not None and led.consumers:
                self._listener.consumers_changed(led.topic, led.consumers)
            if wants_more(controller, led.consumers, led.load):
                led.want(everything=False)
        self._look_soon(led)

    def deposed(self, controller: TopicController) -> None:
        led = self._led.get(controller.topic)
        if led is not None and led.controller is controller:
            self._drop(led)

    def consumers_changed(self, controller: TopicController) -> None:
        led = self._led_by(controller)
        if led is None:
            return
        # A consumer that came back within its grace period was counted all the time.
        consumers = consumers_of(controller)
        if consumers != led.consumers:
            led.has_left |= any(consumers.get(name, 0) < count for name, count in led.consumers.items())
            led.consumers = consumers
            if self._listener is not None:
                self._listener.consumers_changed(led.topic, consumers)
            led.want(everything=False)
            self._look_soon(led)

    def _led_by(self, controller: TopicController) -> _Led | None:
        state = controller.state
        if state is None or state.is_classic:
            return None
        led = self._led.get(controller.topic)
        if led is None or led.controller is not controller:
            if led is not None:
                self._drop(led)
            led = self._led[controller.topic] = self._made(controller)
        return led

    def _made(self, controller: TopicController) -> _Led:
        # Nothing is written below a topic being deleted: its folder must be empty when its record is removed.
        decisions = DecisionLog(
            self._metadata,
            controller.topic,
            self._spawn,
            lambda: record_of(controller) is not None,
            lambda decision, verdict: self._tell(controller, decision, verdict),
        )
        return _Led(controller, decisions)

    def _tell(self, controller: TopicController, decision: Decision, verdict: Verdict | None) -> None:
        if self._listener is not None:
            record = record_of(controller)
            layout = None if record is None else record.layout
            led = self._led.get(controller.topic)
            policy = None if led is None else led.policy
            self._listener.decided(controller.topic, decision, verdict, layout, policy)

    def _look_soon(self, led: _Led) -> None:
        if led.wants_look and not led.is_looking and not led.controller.is_busy:
            led.is_looking = True
            self._spawn(self._work(led))

    async def _tick_always(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            try:
                await self.tick()
            except MetadataError as error:
                log.warning("autoscaler: evaluation failed, retrying in %s s: %s", self.interval_s, error)
            except Exception:
                log.exception("autoscaler: evaluation failed, retrying in %s s", self.interval_s)

    async def tick(self) -> None:
        """Evaluates every topic led here. Operations that are due are started, not awaited."""
        now_ms = 0
        for number, controller in enumerate(list(self._topics.controllers.values())):
            if number % TOPICS_PER_TURN == 0:
                if number:
                    await asyncio.sleep(TURN_PAUSE_S)
                now_ms = await self._metadata.now_ms()
            led = self._led_by(controller)
            if led is None:
                continue
            led.want(everything=True)
            if led.is_looking or controller.is_busy:
                continue  # Evaluated when the operation is over.
            led.is_looking = True
            verdict = await self._look_safely(led, now_ms)
            if isinstance(verdict, Reshape):
                self._spawn(self._work(led, verdict))
            else:
                led.is_looking = False

    # -- evaluation

    async def _work(self, led: _Led, verdict: Verdict | None = None) -> None:
        """Evaluates, and performs what is due, until nothing more is requested. The caller has set `is_looking`."""
        try:
            while self._is_led(led):
                if verdict is None:
                    if not led.wants_look or led.controller.is_busy:
                        return
                    verdict = await self._look_safely(led)
                if isinstance(verdict, Reshape):
                    await self._act(led, verdict)
                verdict = None
        finally:
            led.is_looking = False

    def _is_led(self, led: _Led) -> bool:
        return self._led.get(led.topic) is led

    async def _look_safely(self, led: _Led, now_ms: int | None = None) -> Verdict | None:
        """Evaluates the topic. A failure causes no action; the next tick evaluates again."""
        try:
            return await self._look(led, now_ms)
        except AnabranchError as error:
            log.info("%s: autoscaler: evaluation failed, retrying at the next tick: %s", led.topic, error)
        except Exception:
            log.exception("%s: autoscaler: evaluation failed, retrying at the next tick", led.topic)
        return None

    async def _look(self, led: _Led, now_ms: int | None) -> Verdict | None:
        everything, led.wants_look, led.wants_all = led.wants_all, False, False
        await led.decisions.load()
        if led.is_load_stale:
            await self._read_load(led)
        record = record_of(led.controller)
        if record is None:
            return None
        resolved, found = await self._resolved(led.topic, record)
        self._tell_problems(led, found)
        led.policy = self._policy_of_its_own(resolved, found)
        if now_ms is None:
            now_ms = await self._metadata.now_ms()
        load = await self._owned(led, record)
        record = record_of(led.controller)
        if record is None or not self._is_led(led):
            return None
        if led.controller.is_busy:
            led.want(everything=everything)
            return None
        if led.has_left:
            led.left_ms, led.has_left = now_ms, False
        consumers, capacity = consumers_of(led.controller), capacity_of(led.controller, load)
        facts = (record.layout, load, consumers, capacity, led.left_ms, resolved, found)
        if everything and led.stays is not None and led.facts == facts:
            self._note(led, led.stays, now_ms, everything=True)
            return led.stays
        budget = led.controller.settings.buckets
        seen = Observation(record.layout, load, consumers, now_ms, capacity, budget, led.left_ms)
        verdict = judged(seen, resolved.policy, found, everything=everything)
        led.facts = led.stays = None
        if everything and isinstance(verdict, Stay) and verdict.look_again_ms is None:
            led.facts, led.stays = facts, verdict
        self._note(led, verdict, now_ms, everything=everything)
        return verdict

    async def _resolved(self, topic: TopicName, record: ScalableTopic) -> tuple[Resolved, tuple[str, ...]]:
        try:
            resolved = await self._policies.resolved(topic, record.auto_scale)
        except InvalidPolicy as error:
            return resolve(self._policies.broker, None, None), (str(error),)
        if self._checked[0] is not resolved:
            self._checked = resolved, tuple(problems(resolved.policy))
        return resolved, self._checked[1]

    def _policy_of_its_own(self, resolved: Resolved, found: tuple[str, ...]) -> ScalePolicy | None:
        """The policy that the topic lives under, if it is not the broker's: with problems, one that is off."""
        policy, broker = resolved.policy, self._policies.broker
        if found:
            return replace(broker, enabled=False)
        return None if policy is broker or policy == broker else policy

    def _tell_problems(self, led: _Led, found: tuple[str, ...]) -> None:
        if found != led.problems:
            if found:
                log.error("%s: automatic splits and merges stop: %s", led.topic, "; ".join(found))
            else:
                log.warning("%s: automatic splits and merges resume", led.topic)
            led.problems = found

    async def _read_load(self, led: _Led) -> None:
        # The mark is cleared before the records are read: a change during the reading causes another read.
        led.is_load_stale = False
        try:
            stored = await self._metadata.scan(loads_path(led.topic))
        except BaseException:
            led.is_load_stale = True
            raise
        led.load = {}
        for path, found in stored:
            number = segment_of_load_path(path)
            if number is not None:
                try:
                    led.load[number] = LoadReport(Load.decode(found.value), found.modified_ms)
                except BadRecord as error:
                    log.error("record %s is unreadable: %s", path, error)

    async def _owned(self, led: _Led, record: ScalableTopic) -> dict[SegmentId, LoadReport]:
        """The reports that are evidence: those of active segments that have an owner."""
        found = {}
        for segment in record.layout.active:
            report = led.load.get(segment.id)
            if report is not None and await self._has_owner(segment.topic(led.topic)):
                found[segment.id] = report
        return found

    # -- results

    def _note(self, led: _Led, verdict: Verdict, now_ms: int, *, everything: bool) -> None:
        if everything and led.timer is not None:
            led.timer.cancel()
            led.timer = None
        if isinstance(verdict, Stay | Merge | Rebucket) and verdict.suppressed:
            led.suppressed.update(verdict.suppressed)
        if isinstance(verdict, Stay):
            self._count(led, "no_split", verdict.no_split.value)
            if verdict.no_merge is not NoMerge.NOT_ASKED:
                self._count(led, "no_merge", verdict.no_merge.value)
            if verdict.no_rebucket is not NoRebucket.NOT_NEEDED:
                self._count(led, "no_rebucket", verdict.no_rebucket.value)
            led.decisions.add(verdict, now_ms)
            if verdict.look_again_ms is not None:
                self._look_again_at(led, verdict.look_again_ms, now_ms)

    def _count(self, led: _Led, operation: str, reason: str) -> None:
        counter = self.reasons.get(led.topic.namespace)
        if counter is None:
            counter = self.reasons[led.topic.namespace] = Counter()
        counter[operation, reason] += 1

    def _look_again_at(self, led: _Led, at_ms: int, now_ms: int) -> None:
        delay_s = max(LOOK_AGAIN_LEAST_S, (at_ms - now_ms) / 1000)
        if led.timer is not None:
            if led.timer.when() <= self._loop.time() + delay_s:
                return
            led.timer.cancel()
            led.timer = None
        if delay_s < self.interval_s:  # Otherwise a tick comes first and finds the same.
            led.timer = self._loop.call_later(delay_s, self._look_again, led)

    def _look_again(self, led: _Led) -> None:
        led.timer = None
        led.want(everything=True)
        self._look_soon(led)

    async def _act(self, led: _Led, verdict: Reshape) -> None:
        operation, reason = named(verdict)
        now_ms = 0
        try:
            now_ms = await self._metadata.now_ms()
            budget = led.controller.settings.buckets
            await led.controller.request(lambda ticket: request_for(ticket, verdict, now_ms, budget))
        except AnabranchError as error:
            # No cooldown follows. The next tick decides again, on the facts of that time.
            log.info("%s: an automatic %s failed: %s", led.topic, operation, error)
            self._count(led, f"failed_{operation}", reason)
            if now_ms and self._is_led(led):
                because = f"{verdict.because}, but the {operation} failed: {error}"
                led.decisions.note(DecisionKind.FAILED, because, now_ms, segments_of(verdict), reason)
            return
        log.info("%s: automatic %s of %s: %s", led.topic, operation, segments_of(verdict), verdict.because)
        led.done[operation] += 1
        led.rebuckets += isinstance(verdict, Rebucket)
        self._count(led, operation, reason)
        led.decisions.add(verdict, now_ms)
        # More may be due once the cooldown is over: the next evaluation finds out when.
        led.want(everything=True)

    def reshaped(
        self, controller: TopicController, kind: PlanKind, segments: tuple[int, ...], what: str = ""
    ) -> None:
        """An operator has split, merged or replaced those segments. This is noted, and not counted as automatic."""
        led = self._led_by(controller)
        if led is not None:
            led.rebuckets += kind is PlanKind.REBUCKET
            self._spawn(self._note_manual(led, kind, segments, what))

    async def _note_manual(self, led: _Led, kind: PlanKind, segments: tuple[int, ...], what: str) -> None:
        try:
            await led.decisions.read()
            now_ms = await self._metadata.now_ms()
        except AnabranchError as error:
            log.info("%s: noting a manual %s failed: %s", led.topic, kind.value, error)
            return
        because = f"An operator asked for the {kind.value}{what}"
        numbers = tuple(SegmentId(number) for number in segments)
        led.decisions.note(DecisionKind(kind.value), because, now_ms, numbers, "manual")

    # -- questions from outside

    async def explain(self, topic: TopicName) -> Explanation:
        """Explains the present verdict. NotLeader if another broker leads the topic: that one knows. Nothing is changed
        or counted."""
        controller = await self._topics.leading(scalable_name(topic))
        led = self._led_by(controller)
        record = record_of(controller)
        if led is None or record is None:
            record = await self._topics.view(topic)
        led = led or self._made(controller)
        decisions = await led.decisions.read()
        if led.is_load_stale:
            await self._read_load(led)
        resolved, found = await self._resolved(led.topic, record)
        now_ms = await self._metadata.now_ms()
        load = await self._owned(led, record)
        seen = Observation(
            record.layout,
            load,
            consumers_of(controller),
            now_ms,
            capacity_of(controller, load),
            controller.settings.buckets,
            now_ms if led.has_left else led.left_ms,
        )
        verdict = judged(seen, resolved.policy, found)
        return Explanation(resolved, decisions, dict(led.load), found, verdict, now_ms)

    @property
    def topics_led(self) -> int:
        return len(self._led)

    def consumers(self) -> Iterator[tuple[TopicName, Mapping[str, int]]]:
        """The ordered consumers of every topic led here that has any."""
        for led in list(self._led.values()):
            if led.consumers:
                yield led.topic, led.consumers

    def figures(self) -> Iterator[Figures]:
        """The figures of every topic that this broker leads; none while the session is not connected: another may lead
        them already."""
        if self._metadata.session.state is not SessionState.CONNECTED:
            return
        for controller in list(self._topics.controllers.values()):
            led = self._led_by(controller)
            if led is None:
                continue
            record = record_of(controller)
            if record is not None:
                yield Figures(
                    led.topic,
                    len(record.layout.active),
                    led.done["split"],
                    led.done["merge"],
                    led.rebuckets,
                    led.suppressed[MAX_SEGMENTS],
                    led.suppressed[MAX_DEPTH],
                    led.problems,
                    led.controller.draining,
                )
