"""Builds the Java programs of `interop/` and runs them against a broker, which they may ask to have killed."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from harness.broker_process import BrokerProcess

PROJECT = Path(__file__).resolve().parents[2] / "interop"
BUILD_SECONDS_MAX = 600.0
# The client looks for a collector of its own metrics otherwise.
QUIET = {"OTEL_SDK_DISABLED": "true"}


def build() -> None:
    """Builds the programs unless they are newer than every source."""
    jar = PROJECT / "target" / "interop.jar"
    sources = [PROJECT / "pom.xml", *PROJECT.glob("src/**/*.*")]
    if jar.exists() and jar.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return
    subprocess.run(["mvn", "-q", "-B", "package"], cwd=PROJECT, check=True, timeout=BUILD_SECONDS_MAX)


@dataclass(slots=True)
class Ended:
    """How a program ended: its own lines, and what it complained of."""

    code: int
    lines: list[str] = field(default_factory=list)
    complaints: str = ""

    @property
    def failed(self) -> list[str]:
        return [line for line in self.lines if line.startswith("FAILED")]


def run(main: str, broker: BrokerProcess, *arguments: str, complaints: Path) -> Ended:
    """Runs one program to its end. `complaints` is the file that its standard error goes to."""
    classpath = f"{PROJECT}/target/interop.jar:{PROJECT}/target/libs/*"
    command = ["java", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", classpath]
    command += [f"anabranch.interop.{main}", broker.url, f"http://127.0.0.1:{broker.http_port}", *arguments]
    ended = Ended(0)
    with (
        complaints.open("w") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | QUIET,
        ) as program,
    ):
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            for line in program.stdout:
                if line.strip() == "please restart":
                    broker.restart()
                    program.stdin.write("restarted\n")
                    program.stdin.flush()
                else:
                    print(line, end="", flush=True)
                    ended.lines.append(line.rstrip())
        finally:
            if program.poll() is None and not program.stdout.closed:
                program.kill()
    ended.code = program.returncode
    ended.complaints = complaints.read_text()[-8000:]
    return ended
