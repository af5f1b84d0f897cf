"""The contract of `anabranch standalone`: what is printed, how it ends, what it imports first."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from anabranch.cli.demo.process import BrokerProcess


def standalone(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anabranch.cli", "standalone", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_taken_port_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for ports in (("--port", port, "--http-port", 0), ("--port", 0, "--http-port", port)):
            ended = standalone("--data-dir", tmp_path, *ports)
            assert ended.returncode == 1
            assert ended.stderr.startswith("anabranch: ")
            assert str(port) in ended.stderr
            assert ended.stderr.count("\n") == 1


def test_a_taken_folder_is_one_line_and_exit_code_1(broker: BrokerProcess) -> None:
    ended = standalone("--data-dir", broker.folder / "data", "--port", 0, "--http-port", 0)
    assert ended.returncode == 1
    assert f"another broker serves {broker.folder / 'data'} already" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_with_json_every_line_is_an_object_also_warnings_and_errors(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        ended = standalone(
            *("--data-dir", tmp_path, "--port", port, "--http-port", 0, "--log-format", "json"),
            *("--set", "maxMesageSize=1"),
        )
    assert (ended.returncode, ended.stdout) == (1, "")
    told = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [(one["level"], one["message"].split()[0]) for one in told] == [
        ("WARNING", "unknown"),
        ("ERROR", "port"),
    ]


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    ended = standalone("--data-dir", tmp_path / "data", "--port", 0, "--http-port", 0)
    assert ended.returncode == 1
    assert "it is a file; name a folder" in ended.stderr


def test_too_few_file_descriptors_are_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anabranch.cli", "standalone", "--data-dir", str(tmp_path)]
    ended = subprocess.run(
        ["sh", "-c", 'ulimit -n 100; exec "$@"', "sh", *command, "--port", "0", "--http-port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert (
        ended.stderr
        == "anabranch: too few open files are allowed here: raise `ulimit -n` to some thousands\n"
    )


def test_the_addresses_that_are_told_can_be_used_as_they_are(tmp_path: Path) -> None:
    """With ports that the system chose, on an address that has colons in it."""
    command = [sys.executable, "-m", "anabranch.cli", "standalone", "--data-dir", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--host", "::1", "--port", "0", "--http-port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            _, binary, _, web, *_ = process.stdout.readline().replace(",", "").split()
            url = f"{web}/admin/v2/clusters/standalone"
            with urllib.request.urlopen(url, timeout=10) as answer:
                told = json.load(answer)
            assert (told["serviceUrl"], told["brokerServiceUrl"]) == (web, binary)
            assert binary.startswith("pulsar://[::1]:")
        finally:
            process.terminate()
        assert process.wait(30) == 0


def test_what_was_stored_is_there_after_a_clean_stop() -> None:
    process = BrokerProcess()
    try:
        process.start()
        process.rest("PUT", "/admin/v2/persistent/public/default/kept")
        assert process.stop() == 0
        process.start()
        assert process.rest("GET", "/admin/v2/persistent/public/default") == [
            "persistent://public/default/kept"
        ]
        assert process.stop() == 0
    finally:
        process.discard()


def test_the_command_line_imports_nothing_heavy_before_the_broker() -> None:
    code = (
        "import sys, anabranch.cli.broker.standalone, anabranch.broker.server\n"
        "heavy = {'fastapi', 'starlette', 'pydantic', 'uvicorn', 'rich', 'typer', 'prometheus_client', 'pulsar'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
