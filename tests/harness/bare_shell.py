"""A shell as a newcomer has it: nothing in its environment but a PATH and a HOME, in a checkout with `.venv`.

Ports are the one difference from what the pages say: the usual ones may be taken.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from soak.ports import free_port

ROOT = Path(__file__).parents[2]
WITHIN_S = 540.0  # For Spark on a machine that is busy otherwise.
ENDS_MAX_S = 60.0
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# How this machine reaches an index of packages, if that needs configuration.
_NETWORK = re.compile(r"PIP_\w+|SSL_CERT\w+|REQUESTS_CA_BUNDLE|(https?|no)_proxy", re.IGNORECASE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each block that can run, in order."""
    return [(found[1], found[2]) for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))]


def several_brokers() -> Mapping[str, str]:
    """The brokers that pages start are as many as `BROKERS` says, on whichever ports are free."""
    count = os.environ.get("BROKERS", "1")
    if count == "1":
        return {}
    names = ("brokersFirstPort", "brokersFirstWebPort", "brokersFirstPortTls", "brokersFirstWebPortTls")
    return {"ANABRANCH_brokers": count, **{f"ANABRANCH_{name}": "0" for name in names}}


class BareShell:
    """Each call is a shell of its own; they share the folder, the ports and a temporary folder in place of `/tmp`."""

    def __init__(self, folder: Path) -> None:
        self.port, self.http_port = free_port(), free_port()
        self._tmp = folder / "tmp"
        self._tmp.mkdir()
        self._checkout = folder / "checkout"
        self._checkout.mkdir()
        for entry in ROOT.iterdir():
            if entry.name not in (".venv", "build"):
                (self._checkout / entry.name).symlink_to(entry)
        (self._checkout / ".venv").symlink_to(sys.prefix)
        self._environment: Mapping[str, str] = {
            "PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "PYTHON": f"{sys.base_prefix}/bin/python3",  # Of `make setup`, if this checkout needs it.
            "ANABRANCH_brokerServicePort": str(self.port),
            "ANABRANCH_webServicePort": str(self.http_port),
            "ANABRANCH_SERVICE_URL": f"pulsar://127.0.0.1:{self.port}",
            "ANABRANCH_ADMIN_URL": f"http://127.0.0.1:{self.http_port}",
            **several_brokers(),
            **{name: value for name, value in os.environ.items() if _NETWORK.fullmatch(name)},
        }

    def here(self, text: str) -> str:
        text = text.replace(":6650", f":{self.port}").replace(":8080", f":{self.http_port}")
        return re.sub(r"(?<![\w.])/tmp/", f"{self._tmp}/", text)

    def start(self, text: str, language: str = "sh") -> subprocess.Popen[str]:
        """Runs it as pasted: one command after the other, whatever each exits with."""
        command = ["bash", "-c"] if language == "sh" else [".venv/bin/python", "-c"]
        return subprocess.Popen(
            [*command, self.here(text)],
            cwd=self._checkout,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, text: str, language: str = "sh") -> str:
        """Returns what it prints. Every command of it must succeed."""
        running = self.start(f"set -e\n{text}" if language == "sh" else text, language)
        try:
            shown, _ = running.communicate(timeout=WITHIN_S)
        finally:
            self.end(running)
        assert running.returncode == 0, shown
        return shown

    def end(self, running: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
        """Sends the signal to all its processes, as Ctrl-C in a terminal does. None of them outlives this call."""
        with suppress(ProcessLookupError):
            os.killpg(running.pid, number)
        try:
            running.wait(ENDS_MAX_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            if running.stdout is not None:
                running.stdout.close()
