"""How tests run `produce` and `consume`: in this process, or in one of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.main import main


def produce(broker: BrokerProcess, *arguments: str) -> int:
    return main(["produce", *arguments, "--service-url", broker.service_url])


def consume(broker: BrokerProcess, *arguments: str) -> int:
    return main(["consume", *arguments, "--service-url", broker.service_url])


def topics(broker: BrokerProcess, *arguments: str) -> int:
    return main(["topics", "--admin-url", broker.admin_url, *arguments])


def spawn(broker: BrokerProcess, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "anabranch.cli", *arguments, "--service-url", broker.service_url]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def objects(output: str) -> list[dict[str, Any]]:
    """What `consume --json` printed."""
    return [json.loads(line) for line in output.splitlines()]
