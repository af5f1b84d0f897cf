"""Pulsar's classic Java client. Opt-in (`make interop`): it needs a JDK 17 or later and Maven."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess

pytestmark = [pytest.mark.interop, pytest.mark.java]

PROJECT = Path(__file__).resolve().parents[2] / "interop"


@pytest.mark.timeout(900)
def test_every_claim_holds_with_the_java_client(broker: BrokerProcess) -> None:
    subprocess.run(["mvn", "-q", "-B", "package"], cwd=PROJECT, check=True, timeout=600)
    classpath = f"{PROJECT}/target/interop.jar:{PROJECT}/target/libs/*"
    command = ["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classpath, "anabranch.interop.ClassicClaims"]
    ran = subprocess.run(
        [*command, broker.url, f"http://127.0.0.1:{broker.http_port}"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    print(ran.stdout)
    failed = [line for line in ran.stdout.splitlines() if line.startswith("FAILED")]
    assert failed == []
    assert ran.returncode == 0, ran.stderr[-4000:]
