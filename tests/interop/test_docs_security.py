"""docs/security.md does what it says: its commands run in order, as a reader would type them, against real brokers."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from soak.ports import free_port

from harness.bare_shell import several_brokers
from harness.broker_process import until

pytestmark = pytest.mark.interop

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
USUAL_PORTS = (6650, 8080, 6651, 8443)


@pytest.fixture
def ports() -> dict[int, int]:
    return {usual: free_port() for usual in USUAL_PORTS}


@pytest.fixture
def environ(tmp_path: Path, ports: dict[int, int]) -> dict[str, str]:
    """With `anabranch` on the path, and other ports than the usual ones."""
    command = tmp_path / "bin" / "anabranch"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m anabranch.cli "$@"\n')
    command.chmod(0o755)
    known = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
    return known | {
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        **several_brokers(),
        "ANABRANCH_brokerServicePort": str(ports[6650]),
        "ANABRANCH_webServicePort": str(ports[8080]),
        "ANABRANCH_SERVICE_URL": f"pulsar://localhost:{ports[6650]}",
        "ANABRANCH_ADMIN_URL": f"http://localhost:{ports[8080]}",
    }


def here(text: str, ports: dict[int, int]) -> str:
    return re.sub(r"(?<=[:=])(6650|8080|6651|8443)\b", lambda found: str(ports[int(found[0])]), text)


def is_up(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/status.html")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def broker(text: str, folder: Path, environ: dict[str, str], port: int) -> Iterator[None]:
    with (folder / "broker.log").open("ab") as log:
        process = subprocess.Popen(
            ["bash", "-c", "exec " + text], cwd=folder, env=environ, stdout=log, stderr=log
        )
    try:
        until(lambda: process.poll() is None and is_up(port), within_s=30)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(15)


def test_every_command_of_the_page_works(
    tmp_path: Path, environ: dict[str, str], ports: dict[int, int]
) -> None:
    blocks = [here(block, ports) for block in _BLOCK.findall(PAGE.read_text(encoding="utf-8"))]
    assert len(blocks) >= 8
    with ExitStack() as running:
        for block in blocks:
            if block.startswith("anabranch standalone"):
                running.close()
                running.enter_context(broker(block, tmp_path, environ, ports[8080]))
                continue
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                timeout=120,
                stdin=subprocess.DEVNULL,
            )
            assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
            if "! anabranch consume" in block:
                assert "role 'shop' may not" in done.stderr
