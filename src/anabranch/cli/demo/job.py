"""The main job of `anabranch demo`, from an empty folder to a verified report.

A broker as a process of its own, or several, a scalable topic, a clickstream whose rate rises and falls, two queries of
Spark that read it meanwhile, one `kill -9` of a broker, and then a check that every event is in the tables, once and in
order. Any end, a failure or Ctrl-C too, ends the processes and removes the folder.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from anabranch.cli.admin.rest import RestRefused
from anabranch.cli.demo import one_query
from anabranch.cli.demo.account import Account, StoryEnded
from anabranch.cli.demo.core.clickstream import Clickstream, due, peak_rate
from anabranch.cli.demo.core.ran import Killed, Moment, Ran
from anabranch.cli.demo.core.report import report, stored_rates
from anabranch.cli.demo.display import Display, ShownReader, Snapshot, counted
from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.demo.producing import Producing

if TYPE_CHECKING:
    from anabranch.cli.demo.reading import DemoReading

TOPIC: Final = "topic://public/default/clicks"
REST: Final = "/admin/v2/scalable/public/default/clicks"
PAGE: Final = "/ui#/topics/public/default/clicks"
LOOK_EVERY_S: Final = 0.5
LOGS: Final = ("broker.out", "spark.log")
# By default a broker evaluates topics once a minute; here all changes have to show within one minute.
SETTINGS: Final = {
    # Messages under way when the broker is killed are sent again; without this they may be stored twice.
    "brokerDeduplicationEnabled": "true",
    "scalableTopicAutoScaleInterval": "500ms",
    "scalableTopicLoadReportInterval": "500ms",
    "scalableTopicLoadReportWindow": "2s",
}
# The topic is kept as a table, too.
TABLE_SETTINGS: Final = {
    "tablesUrl": "{folder}/tables",
    "tablesDefaultMode": "raw",
    "tablesCommitSeconds": "5",
}
SPLITS_AT: Final = 1 / 5  # A share of the highest rate of the stream.
MERGES_AT: Final = 1 / 12
# A share of the stream's time: late, since the page's history is lost with the broker, and since the store's time
# stands still for some seconds after a crash, in which nothing is split or merged.
KILLED_AT: Final = 0.95
# One of several is killed at the top of the second wave: the others have its work, and most of the history.
ONE_KILLED_AT: Final = 0.66
TAKEN_OVER_MAX_S: Final = 60.0
# How long the queries may take after the end of the stream. A busy machine needs a while.
DRAIN_MAX_S: Final = 300.0
MERGES_MAX_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Wish:
    """The options of the command line."""

    events: int
    seconds: float
    report: Path
    brokers: int = 1
    is_kept: bool = False
    is_killing: bool = True
    opens_browser: bool = False
    # Called with the exit code when the demo is over and the broker goes on.
    stays: Callable[[int], object] = lambda code: None


def policy(stream: Clickstream) -> dict[str, float]:
    """Limits that the stream crosses on its way up and down, and waits of a second or two."""
    peak = peak_rate(stream)
    return {
        "maxSegments": 16,
        "maxDagDepth": 30,
        "splitCooldownSeconds": 1,
        "mergeCooldownSeconds": 1,
        "mergeWindowSeconds": 2,
        "splitMsgRateInThreshold": round(peak * SPLITS_AT),
        "mergeMsgRateInThreshold": round(peak * MERGES_AT),
    }


class MainJob:
    def __init__(self, account: Account, wish: Wish, reading: DemoReading) -> None:
        self._tell = account
        self._wish = wish
        self._reading = reading
        self._display = Display(account.console)
        self._stream = Clickstream(wish.events, wish.seconds)
        self._has_table = one_query.is_possible()
        self._broker = BrokerProcess(SETTINGS | (TABLE_SETTINGS if self._has_table else {}), wish.brokers)
        self.ran = Ran(
            self._stream,
            policy(self._stream),
            readers=reading.told,
            software=reading.software,
            brokers=wish.brokers,
        )
        self._kills_from = due(
            self._stream.offsets_ms,
            self._stream.seconds * (KILLED_AT if wish.brokers == 1 else ONE_KILLED_AT),
        )
        self._names: dict[str, str] = {}  # Of several brokers, by their addresses.
        self._returning = ""  # The one of several that was killed, until it serves again.
        self._began = time.monotonic()
        self._is_staying = False

    def run(self) -> int:
        """Returns the exit code."""
        try:
            with suppress(StoryEnded), self._reading:
                self._story()
            self.ran.took_s = time.monotonic() - self._began
            self._leave_behind()
            code = self._tell.conclude()
            if self._wish.is_kept:
                self._stay(code)
            return code
        finally:
            self._broker.discard(keep=self._is_staying)

    def _story(self) -> None:
        table = self._prepare()
        stream = self._stream
        held_from = stream.events
        if self._wish.is_killing:
            # The stream does not end before the kill, however late this process is.
            held_from = due(stream.offsets_ms, stream.seconds * KILLED_AT)
        producing = Producing(self._broker.service_url, TOPIC, stream, table, held_from)
        try:
            self._flow(producing)
            if self._has_table:
                self._ask_once()
            self._drain(producing)
        finally:
            producing.stop()
            self.ran.start_ms = self.ran.start_ms or producing.start_ms
            self.ran.end_ms = self.ran.end_ms or _now_ms()
        self._check(producing)

    # -- chapters

    def _prepare(self) -> Any:
        stream = self._stream
        count = self._wish.brokers
        what = "a broker" if count == 1 else f"{count} brokers"
        with self._tell.step(f"Start {what}, a scalable topic and {self._reading.told}"):
            seconds = self._broker.start()
            self._tell.say(
                f"{'broker' if count == 1 else what}: process {self._broker.pid}, {self._broker.service_url}, "
                f"ready after {seconds:.1f} s"
            )
            if count > 1:
                self._names = dict(sorted(self._broker.addresses().items(), key=lambda item: item[1]))
            self._make_topic()
            self._tell.say(f"live page: {self._broker.admin_url}{PAGE}")
            self._open_browser()
            with (
                self._display.waiting(f"making the events, starting {self._reading.told}"),
                ThreadPoolExecutor(1) as aside,
            ):
                # Compiling takes some seconds, once on a machine, and Spark takes as long to start.
                made = aside.submit(_made, stream)
                self._reading.start(self._broker.service_url, TOPIC, stream, self._broker.folder)
                table = made.result()
            name, clicks = stream.busiest()
            self._tell.say(
                f"{stream.events:,} clicks of {stream.visitors:,} visitors over {stream.seconds:.0f} s, up to "
                f"{peak_rate(stream):,.0f} a second; the busiest, {name}, has {clicks:,}"
            )
            limits = self.ran.policy
            self._tell.say(
                f"a segment splits above {limits['splitMsgRateInThreshold']:,.0f} events/s, two neighbours merge "
                f"once both were below {limits['mergeMsgRateInThreshold']:,.0f} for {limits['mergeWindowSeconds']} s"
            )
        return table

    def _make_topic(self) -> None:
        keep_all = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        self._broker.rest("POST", "/admin/v2/namespaces/public/default/retention", keep_all)
        self._broker.rest("PUT", f"{REST}?numInitialSegments=1")
        self._broker.rest("POST", f"{REST}/autoScalePolicy", self.ran.policy)

    def _open_browser(self) -> None:
        if self._wish.opens_browser:
            import webbrowser

            webbrowser.open(f"{self._broker.admin_url}{PAGE}")

    def _flow(self, producing: Producing) -> None:
        with self._tell.step(f"{self._stream.events:,} clicks flow, and the topic follows their rate"):
            producing.start()
            with self._display.running():
                while not producing.is_sent.wait(LOOK_EVERY_S):
                    self._look(producing, "clicks are flowing")
                    if self._wish.is_killing and not self.ran.killed and producing.sent >= self._kills_from:
                        (self._kill if self._wish.brokers == 1 else self._kill_one)(producing)
                self._look(producing, "all clicks are stored")
            if producing.error is not None:
                raise producing.error
            self.ran.start_ms, self.ran.end_ms = producing.start_ms, _now_ms()
            self._tell.check(
                producing.stored == self._stream.events,
                f"{producing.stored:,} of {self._stream.events:,} events have a receipt: they are on disk",
            )

    def _kill(self, producing: Producing) -> None:
        at_ms, stored = _now_ms(), producing.stored
        producing.go_on()  # Clicks are under way while the broker dies, and while it is down.
        self._broker.kill()
        self._broker.start()
        self.ran.killed = killed = Killed(at_ms, _now_ms(), stored)
        self._display.say(
            f"{self._elapsed(at_ms, producing):5.1f} s  kill -9 of the broker after {stored:,} receipts; "
            f"it serves again after {killed.away_s:.1f} s",
            "bold yellow",
        )

    def _kill_one(self, producing: Producing) -> None:
        """Kills the broker that serves the most segments, and waits until others store what is sent to its segments."""
        serving = self._serving()
        if not any(serving.values()):
            return  # No broker has told yet which segments are whose.
        name = max(serving, key=lambda one: serving[one])
        segments = f"{serving[name]} of {counted(sum(serving.values()), 'segment')}"
        producing.go_on()
        self._broker.kill_one(name)
        at_s, at_ms, stored, sent = time.monotonic(), _now_ms(), producing.stored, producing.sent
        self._display.say(
            f"{self._elapsed(at_ms, producing):5.1f} s  kill -9 of {name}, which serves {segments}, "
            f"after {stored:,} receipts",
            "bold yellow",
        )
        while not producing.has_stored(sent, at_s):
            if producing.error is not None:
                raise producing.error
            if time.monotonic() - at_s > TAKEN_OVER_MAX_S:
                raise TimeoutError(
                    f"{name} was killed, and its segments are not served after {TAKEN_OVER_MAX_S:.0f} s"
                )
            time.sleep(0.01)
        self.ran.killed = killed = Killed(at_ms, _now_ms(), stored, name, segments)
        self._returning = name
        self._display.say(
            f"{self._elapsed(killed.back_ms, producing):5.1f} s  its segments are served again, "
            f"{killed.away_s:.1f} s later",
            "bold yellow",
        )

    def _serving(self) -> dict[str, int]:
        """The active segments of each of several brokers, by their names."""
        found = self.ran.past.active_by_owner()
        return {name: found.get(address, 0) for address, name in self._names.items()}

    def _ask_once(self) -> None:
        with self._tell.step("One query over the topic's history and its newest clicks"):
            answer = one_query.ask_once(self._broker.service_url, TOPIC)
            events = self._stream.events
            self._tell.check(answer.rows == answer.distinct == events, answer.claim)

    def _drain(self, producing: Producing) -> None:
        """The closing event is sent once all others were read: it moves the watermark past every session."""
        with self._tell.step(self._reading.catching_up):
            with self._display.running():
                deadline = time.monotonic() + DRAIN_MAX_S
                while not self._reading.has_read(self._stream.events):
                    self._look_until(deadline, producing, "catching up")
                close_ms = producing.start_ms + round(self._stream.seconds * 1000) + 600_000
                producing.close_stream(close_ms)
                while not self._reading.has_closed(self._stream.events):
                    self._look_until(deadline, producing, "the closing event is on its way through")
                self.ran.done_ms = _now_ms()
                quiet_until = time.monotonic() + MERGES_MAX_S
                while not self.ran.past.count("merge") and time.monotonic() < quiet_until:
                    self._look_until(deadline, producing, "the topic merges what it no longer needs")
            producing.join(DRAIN_MAX_S)
            if producing.error is not None:
                raise producing.error
            behind = (self.ran.done_ms - self.ran.end_ms) / 1000
            self._tell.say(f"done {behind:.1f} s after the last event was stored")
            self._reading.finish()
            self.ran.batches = dict(self._reading.batches())

    def _look_until(self, deadline: float, producing: Producing, doing: str) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {DRAIN_MAX_S:.0f} s: {doing}")
        time.sleep(LOOK_EVERY_S)
        self._look(producing, doing)

    def _look(self, producing: Producing, doing: str) -> None:
        told = len(self._reading.failures())
        self._reading.look()
        for failure in self._reading.failures()[told:]:
            self._display.say(f"{failure}; it goes on from its checkpoint", "bold yellow")
        past = self.ran.past
        fresh = []
        with suppress(RestRefused):  # The broker may be busy, or just restarted.
            told = self._broker.rest("GET", f"/ui/api/topics/public/default/clicks?{past.question}")
            fresh = past.take(told, _now_ms())
        for change in fresh:
            where = " and ".join(map(str, change.segments))
            self._display.say(
                f"{self._elapsed(change.at_ms, producing):5.1f} s  {change.kind} of {where}: {change.because}"
            )
        if self._returning and self._broker.serves_again(self._returning):
            now = self._elapsed(_now_ms(), producing)
            self._display.say(f"{now:5.1f} s  {self._returning} was started again, and serves", "bold yellow")
            self._returning = ""
        rows = self._reading.rows()
        moments = self.ran.moments
        moments.append(Moment(_now_ms(), producing.stored, rows))
        before = moments[max(0, len(moments) - 5)]
        seconds = max(0.001, (moments[-1].at_ms - before.at_ms) / 1000)
        limit = past.split_limit or 1.0
        self._display.show(
            Snapshot(
                doing,
                self._elapsed(_now_ms(), producing),
                producing.stored,
                self._stream.events,
                (producing.stored - before.stored) / seconds,
                [(one.start, one.end, one.rate / limit) for one in past.active],
                past.count("split"),
                past.count("merge"),
                [
                    ShownReader(
                        name, count, max(0, producing.stored - count), self._reading.batch_count(name)
                    )
                    for name, count in rows.items()
                ],
                self._serving(),
            )
        )

    def _elapsed(self, at_ms: int, producing: Producing) -> float:
        return max(0.0, (at_ms - producing.start_ms) / 1000) if producing.start_ms else 0.0

    def _check(self, producing: Producing) -> None:
        past = self.ran.past
        with self._tell.step("Compare what was written with what was sent"):
            findings = self._reading.findings(self._stream, producing.start_ms)
            self.ran.sessions = self._reading.sessions
            for finding in findings:
                self._tell.check(finding.is_true, finding.claim)
            splits, merges = past.count("split"), past.count("merge")
            most = max((count for _, count in past.active_at()), default=0)
            self._tell.check(
                splits > 0 and merges > 0,
                f"the topic made {counted(splits, 'split')} and {counted(merges, 'merge')} by itself, "
                f"{counted(most, 'segment')} at the most",
            )
            if self._wish.is_killing:
                killed = self.ran.killed
                told = killed.claim if killed else "a broker was to be killed, and none was"
                self._tell.check(killed is not None, told)

    def _leave_behind(self) -> None:
        """Writes the report, even for a failed run, as it shows how far the run came; for such a run it copies the logs
        too."""
        self.ran.checks = self._tell.checked
        folder = self._wish.report
        folder.mkdir(parents=True, exist_ok=True)
        if self.ran.moments:
            path = folder / "report.html"
            path.write_text(report(self.ran), encoding="utf-8")
            self._tell.note(f"{self._figures()}\nreport: {path.resolve()}")
        if not all(held for _, held in self.ran.checks):
            logs = [path for name in LOGS if (path := self._broker.folder / name).exists()]
            for path in logs:
                shutil.copy(path, folder)
            self._tell.note(f"logs: {', '.join(str((folder / path.name).resolve()) for path in logs)}")

    def _figures(self) -> str:
        ran = self.ran
        rates = [rate for _, rate in stored_rates(ran)]
        behind = max((m.stored - min(m.rows.values(), default=0) for m in ran.moments), default=0)
        return (
            f"{ran.took_s:.0f} s in all; up to {max(rates, default=0):,.0f} events/s stored; "
            f"readers up to {max(0, behind):,} events behind"
        )

    def _stay(self, code: int) -> None:
        """Waits until the demo is ended from outside; then its folder stays."""
        self._is_staying = True
        self._tell.say("")
        who = "the broker goes" if self._wish.brokers == 1 else "the brokers go"
        self._tell.say(f"{who} on until Ctrl-C: {self._broker.admin_url}{PAGE}")
        self._tell.say(f"the data, the tables and the checkpoints stay in {self._broker.folder}")
        self._wish.stays(code)
        while True:
            signal.pause()


def _made(stream: Clickstream) -> Any:
    """The events, with the kernels that send them compiled."""
    from anabranch.columns import warm_up

    warm_up()
    return stream.table()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
