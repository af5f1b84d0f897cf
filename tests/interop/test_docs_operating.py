"""docs/operating.md and the pages beside it do what they say: the commands of a page run in order in one shell, and
print what it shows."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from soak.ports import free_port

from anabranch.broker.admin.http.route_table import RouteTable
from anabranch.broker.config.config import load
from anabranch.broker.rest import TABLES
from anabranch.cli.main import build_parser
from harness.bare_shell import several_brokers

pytestmark = pytest.mark.interop

DOCS = Path(__file__).parents[2] / "docs"
# A pause of one process is a page's whole point: that of several brokers is described, and not shown.
OF_ONE_BROKER = {"backup"}
PAGES = ["operating", "backup", "downgrade", "logs", "for-kafka-users", "for-pulsar-users"]
DEPLOY = Path(__file__).parents[2] / "deploy"
# Six brokers and some fifty commands: a quarter of that on a machine that does nothing else.
WITHIN_S = 240.0
_BLOCK = re.compile(r"^```(sh|output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What is no command's answer: where a broker serves, and the shell's remark on one that was killed.
_ASIDE = re.compile(r"anabranch: pulsar://|bash: line \d+: +\d+ Killed")
_MARK = "-- end of block "


def blocks(page: str) -> list[tuple[str, str]]:
    """Each piece of the script, and what it is to print: nothing is said if nothing is shown."""
    found: list[tuple[str, str]] = []
    for match in _BLOCK.finditer((DOCS / f"{page}.md").read_text(encoding="utf-8")):
        if match[1] == "sh":
            found.append((match[2], ""))
        else:
            found[-1] = (found[-1][0], match[2])
    return found


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment in which `anabranch` is this tree's, on ports of this test's own."""
    port, http_port = free_port(), free_port()
    command = tmp_path / "bin" / "anabranch"
    command.parent.mkdir()
    ports = f"--port {port} --http-port {http_port}"
    command.write_text(
        f'#!/bin/sh\nif [ "$1" = standalone ]; then set -- "$@" {ports}; fi\n'
        f'exec "{sys.executable}" -m anabranch.cli "$@"\n'
    )
    command.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
    return environ | {
        "PATH": f"{command.parent}:{environ['PATH']}",
        **several_brokers(),
        "ANABRANCH_SERVICE_URL": f"pulsar://127.0.0.1:{port}",
        "ANABRANCH_ADMIN_URL": f"http://127.0.0.1:{http_port}",
    }


def script(pieces: list[tuple[str, str]], http_port: str) -> str:
    """All of it, for other ports than the usual ones, with marks between the pieces."""
    text = "set -eu -o pipefail\nexec 2>&1\n"
    for number, (piece, _) in enumerate(pieces):
        text += f"{piece}echo '{_MARK}{number}'\n"
    for usual, here in {"8080": http_port, "6651": str(free_port()), "8443": str(free_port())}.items():
        text = re.sub(rf"(?<!\d){usual}(?!\d)", here, text)
    return text


@pytest.mark.timeout(WITHIN_S + 20)
@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs_and_prints_what_it_says(shell: dict[str, str], tmp_path: Path, page: str) -> None:
    if page in OF_ONE_BROKER:
        shell = {name: value for name, value in shell.items() if not name.startswith("ANABRANCH_brokers")}
    pieces = blocks(page)
    running = subprocess.Popen(
        ["bash", "-c", script(pieces, shell["ANABRANCH_ADMIN_URL"].rpartition(":")[2])],
        cwd=tmp_path,
        env=shell,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = running.communicate(timeout=WITHIN_S)
    finally:
        # Whatever is left of brokers, if a command has failed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    log = tmp_path / "broker.log"
    assert running.returncode == 0, output + (log.read_text()[-2000:] if log.exists() else "")
    for number, (piece, expected) in enumerate(pieces):
        printed, _, output = output.partition(f"{_MARK}{number}\n")
        told = [line for line in printed.splitlines() if not _ASIDE.match(line)]
        if expected:
            assert told == expected.splitlines(), piece


def test_the_unit_starts_a_broker_with_options_that_exist() -> None:
    unit = (DEPLOY / "anabranch.service").read_text()
    command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert command is not None
    program, *words = command[1].split()
    assert program.endswith("/anabranch")
    parsed = build_parser(words[0]).parse_args(words)
    assert (parsed.data_dir, parsed.log_format) == ("/var/lib/anabranch", "json")
    assert "StateDirectory=anabranch" in unit


def test_the_image_is_made_of_files_that_exist_and_starts_with_options_that_exist() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (DEPLOY.parent / source).exists(), source
    for words in re.findall(r"(?:ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE):
        program, *arguments = json.loads(words)
        assert program == "anabranch"
        build_parser(arguments[0]).parse_args(arguments)


def test_the_manifest_starts_a_broker_with_options_ports_and_probes_that_exist() -> None:
    text = (DEPLOY / "kubernetes.yaml").read_text()
    image = (DEPLOY / "Containerfile").read_text()
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", image, re.MULTILINE)
    given = re.search(r"^ +args: (\[.*\])$", text, re.MULTILINE)
    assert entry is not None
    assert given is not None
    _, *words = json.loads(entry[1]) + json.loads(given[1])
    build_parser(words[0]).parse_args(words)
    named = dict(re.findall(r"name: (ANABRANCH_\w+), value: \"?(\w+)\"?", text))
    config, warnings = load(None, named)
    assert (config.advertised_address, warnings) == ("anabranch", [])
    assert {int(port) for port in re.findall(r"containerPort: (\d+)", text)} == {6650, 8080}
    probed = set(re.findall(r"httpGet: \{path: (\S+),", text))
    routes = RouteTable(route for table in TABLES for route in table)
    assert probed == {"/status.html"}
    assert routes.find("GET", "/status.html") is not None
    # A folder has one broker, and its log a disk of its own.
    assert "replicas: 1" in text
    assert "ReadWriteOnce" in text
