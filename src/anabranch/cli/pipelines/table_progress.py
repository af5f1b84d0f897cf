"""The progress of a job that fills tables: a line that is redrawn on a terminal, else a line now and then; and a
summary."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from anabranch.cli.pipelines.spark_progress import tasks
from anabranch.cli.render.progress import is_terminal
from anabranch.pipelines.tables.to_parquet import Compacted, WrittenBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REDRAWN_EVERY_S: Final = 0.5
LINE_EVERY_S: Final = 5.0


class TableProgress:
    """A context around the run. The writing threads call `told`."""

    def __init__(self, spark: SparkSession, what: str, *, is_quiet: bool) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._what = what
        self._is_quiet = is_quiet
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)
        self.rows = self.files = self.bytes = self.batches = 0
        self.days: set[str] = set()
        self.compacted: list[Compacted] = []
        self._line_at = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def told(self, news: WrittenBatch | Compacted) -> None:
        with self._lock:
            if isinstance(news, Compacted):
                self.compacted.append(news)
            else:
                self.rows += news.rows
                self.files += news.files
                self.bytes += news.bytes
                self.batches += 1
                self.days.update(news.days)
            if self._is_quiet or self._is_drawn or time.monotonic() - self._line_at < LINE_EVERY_S:
                return
            self._line_at = time.monotonic()
        print(f"{self._what}: {self._so_far()}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        if not self._is_quiet:
            print(text, file=sys.stderr, flush=True)

    def summary(self) -> str:
        """`1,000 rows of 2 days, 2026-11-14 to 2026-11-15, in 3 new files, 1.2 MB; 4.1 s`.

        Only tables of plain Parquet report days and files; other formats write theirs on their own.
        """
        told = "nothing new" if not self.compacted else ""
        if self.rows:
            told = _many(self.rows, "row")
            if days := sorted(self.days):
                told += (
                    f" of {days[0]}" if len(days) == 1 else f" of {len(days)} days, {days[0]} to {days[-1]}"
                )
            if self.files:
                told += f", in {_many(self.files, 'new file')}, {size(self.bytes)}"
            told += f"; {self.seconds:,.1f} s"
        if self.compacted:
            before, after = sum(one.files for one in self.compacted), sum(one.into for one in self.compacted)
            days_told = _many(len({one.day for one in self.compacted}), "day")
            told += "; " if told else ""
            told += f"{_many(before, 'small file')} of {days_told} made into {after:,}"
        return told

    # -- drawing

    @property
    def _is_drawn(self) -> bool:
        return is_terminal() and not self._is_quiet

    def __enter__(self) -> TableProgress:
        if self._is_drawn:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _so_far(self) -> str:
        batches, files = _many(self.batches, "batch", "batches"), _many(self.files, "file")
        return f"{_many(self.rows, 'row')} in {batches}, {files}, {size(self.bytes)}"

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns: tuple[Any, ...] = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
            task = bar.add_task(self._what)
            while not self._is_over.wait(REDRAWN_EVERY_S):
                done, known = tasks(self._tracker, self._tracker.getActiveJobsIds())
                now = f"  [{done} of {known} tasks]" if known else ""
                bar.update(task, description=f"{self._what}: {self._so_far()}{now}".replace("[", r"\["))


def size(count: float) -> str:
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if count < 1000:
            break
        count, unit = count / 1000, larger
    return f"{count:,.{0 if unit == 'B' else 1}f} {unit}"


def _many(count: int, one: str, more: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"
