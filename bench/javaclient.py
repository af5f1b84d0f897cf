"""Builds and runs the Java load client, and reads the broker's CPU at the moments the client names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import usage

PROJECT = Path(__file__).resolve().parent / "java"
JVM = ["-Xms1g", "-Xmx1g", "-XX:+UseParallelGC", "-XX:MaxDirectMemorySize=2g"]
QUIET = {"OTEL_SDK_DISABLED": "true"}


class LoadFailed(Exception):
    """The load client ended without a result; the message has its output."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one load reported, and what the broker and the rest of the machine used meanwhile."""

    result: dict[str, Any]
    broker_cpu_seconds: float
    client_cpu_seconds: float
    others_cores: float
    timed_seconds: float


@dataclass(slots=True)
class Watched:
    """A load process whose begin and end lines are turned into readings."""

    broker: int
    readings: list[tuple[float, usage.Reading]] = field(default_factory=list)
    result: dict[str, Any] | None = None

    def follow(self, command: list[str], timeout: float, cwd: Path) -> Outcome:
        deadline = time.monotonic() + timeout
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=os.environ | QUIET,
        )
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), True)
        try:
            for line in child.stdout:
                if line.startswith("{"):
                    self._note(json.loads(line), child.pid)
                if time.monotonic() > deadline:
                    break
            _, complaint = child.communicate(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            complaint = f"no end within {timeout:.0f} s"
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        if self.result is None or len(self.readings) != 2:
            raise LoadFailed(f"{' '.join(command[-12:])}\n{complaint[-4000:]}")
        return self._outcome(self.result)

    def _note(self, event: dict[str, Any], client: int) -> None:
        if event["event"] == "result":
            self.result = event
        elif event["event"] in ("begin", "end"):
            self.readings.append((time.monotonic(), usage.read(self.broker, client)))

    def _outcome(self, result: dict[str, Any]) -> Outcome:
        (t0, before), (t1, after) = self.readings
        broker, client = after.broker - before.broker, after.client - before.client
        others = after.machine - before.machine - broker - client
        return Outcome(result, broker, client, max(0.0, others) / (t1 - t0), t1 - t0)


class FirstPublish:
    """A client process that is already running and tries to publish; `wait` returns when it succeeded."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def wait(self, seconds: float) -> float:
        """The boot clock at the first confirmed publish."""
        out, _ = self._child.communicate(timeout=seconds)
        unix = next(json.loads(line)["unix"] for line in out.splitlines() if '"result"' in line)
        return float(unix) - time.time() + time.clock_gettime(time.CLOCK_BOOTTIME)


class JavaClient:
    def __init__(self, java: str = "java", maven: str = "mvn") -> None:
        self._java, self._maven = java, maven

    def build(self) -> None:
        """Builds the client unless its jar is newer than every source."""
        jar = PROJECT / "target" / "bench-load.jar"
        sources = [PROJECT / "pom.xml", *PROJECT.glob("src/**/*.*")]
        if jar.exists() and jar.stat().st_mtime > max(source.stat().st_mtime for source in sources):
            return
        print("bench: building the Java load client", flush=True)
        subprocess.run([self._maven, "-q", "-B", "package"], cwd=PROJECT, check=True)

    def command(self, load: str, **options: object) -> list[str]:
        target = PROJECT / "target"
        words = [
            f"{key}={str(value).lower() if value in (True, False) else value}"
            for key, value in options.items()
        ]
        path = f"{target}/bench-load.jar:{target}/libs/*"
        return [self._java, *JVM, "-cp", path, "anabranch.bench.Load", load, *words]

    def run(self, broker: int, timeout: float, load: str, **options: object) -> Outcome:
        return Watched(broker).follow(self.command(load, **options), timeout, PROJECT)

    @contextmanager
    def first_publish(self, system: str, url: str) -> Iterator[FirstPublish]:
        child = subprocess.Popen(
            self.command("first", system=system, url=url, topic="first"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | QUIET,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdout.readline()
            child.stdin.write("go\n")
            child.stdin.flush()
            yield FirstPublish(child)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()


def run_python(broker: int, timeout: float, module: str, *arguments: str) -> Outcome:
    """Runs a Python load of this package the way the Java one is run."""
    root = PROJECT.parent.parent
    return Watched(broker).follow([sys.executable, "-m", module, *arguments], timeout, root)
