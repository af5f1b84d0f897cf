"""`anabranch topics` on scalable topics, against a real broker; what a terminal and a pipe get to see of `watch`."""

from __future__ import annotations

import http.server
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from anabranch.cli.admin import rest
from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.main import main

Capture = pytest.CaptureFixture[str]


def topics(broker: BrokerProcess, *arguments: str) -> int:
    return main(["topics", "--admin-url", broker.admin_url, *arguments])


def shown(capsys: Capture) -> list[str]:
    found = capsys.readouterr()
    assert found.err == ""
    return found.out.splitlines()


def refused(capsys: Capture) -> str:
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("anabranch: ")
    assert found.err.count("\n") == 1
    return found.err


def test_a_scalable_topic_is_made_split_merged_and_deleted(broker: BrokerProcess, capsys: Capture) -> None:
    assert topics(broker, "create", "--scalable", "--segments", "2", "grows") == 0
    assert shown(capsys) == ["topic://public/default/grows: created with 2 segments"]
    assert topics(broker, "split", "grows", "0") == 0
    assert shown(capsys) == ["0 → 2 (0000-3fff), 3 (4000-7fff); 3 active segments"]
    assert topics(broker, "merge", "topic://public/default/grows", "1", "3") == 0
    assert shown(capsys) == ["3, 1 → 4 (4000-ffff, 2 entry buckets); 2 active segments"]
    assert topics(broker, "delete", "grows") == 0
    assert shown(capsys) == ["topic://public/default/grows: deleted"]
    assert topics(broker, "stats", "topic://public/default/grows") == 1
    assert "does not exist" in refused(capsys)


def test_stats_are_tables_or_json(broker: BrokerProcess, capsys: Capture) -> None:
    topics(broker, "create", "--scalable", "--segments", "2", "figures")
    capsys.readouterr()
    rest.call(broker.admin_url, "PUT", "/admin/v2/scalable/public/default/figures/subscriptions/s")
    assert topics(broker, "stats", "figures") == 0
    lines = shown(capsys)
    assert lines[0] == "topic://public/default/figures   epoch 0   2 active, 0 sealed"
    assert lines[3].split()[:4] == ["ID", "RANGE", "STATE", "FROM"]
    assert lines[4].split()[:3] == ["0", "0000-7fff", "active"]
    assert lines[-1].split() == ["s", "stream", "0", "0", "0"]
    assert topics(broker, "stats", "figures", "--json") == 0
    assert json.loads(capsys.readouterr().out)["activeSegments"] == 2
    assert topics(broker, "subscriptions", "figures") == 0
    assert shown(capsys) == ["s"]


def test_scalable_topics_are_listed_and_found_by_their_properties(
    broker: BrokerProcess, capsys: Capture
) -> None:
    topics(broker, "create", "--scalable", "--property", "a=1", "--property", "b=2", "labelled")
    capsys.readouterr()
    assert topics(broker, "list") == 0
    assert "topic://public/default/labelled  (scalable)" in shown(capsys)
    assert topics(broker, "list", "--property", "a=1", "--property", "b=2") == 0
    assert shown(capsys) == ["topic://public/default/labelled  (scalable)"]
    assert topics(broker, "list", "--property", "a=1", "--property", "b=3") == 0
    assert shown(capsys) == []


def test_names_with_slashes_and_umlauts_work(broker: BrokerProcess, capsys: Capture) -> None:
    name = "topic://public/default/größe/a b+c"
    assert topics(broker, "create", name) == 0
    assert topics(broker, "split", name, "0") == 0
    assert topics(broker, "stats", name) == 0
    assert shown(capsys)[2].startswith(f"{name}   epoch")
    assert topics(broker, "delete", name) == 0


def test_a_classic_topic_is_migrated_and_then_means_the_scalable_one(
    broker: BrokerProcess, capsys: Capture
) -> None:
    topics(broker, "create", "moves", "--partitions", "2")
    assert shown(capsys) == ["persistent://public/default/moves: created with 2 partitions"]
    assert topics(broker, "split", "moves", "0") == 1
    assert "migrate" in refused(capsys)
    assert topics(broker, "migrate", "moves") == 0
    assert shown(capsys) == [
        "0, 1 → 2 (0000-7fff, 2 entry buckets), 3 (8000-ffff, 2 entry buckets); 2 active segments"
    ]
    assert topics(broker, "stats", "moves") == 0
    assert "2 active, 2 sealed" in shown(capsys)[0]
    assert topics(broker, "unload", "moves") == 1
    assert "is scalable" in refused(capsys)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["split", "wrong", "9"], "active are 0"),
        (["merge", "wrong", "0", "0"], "itself"),
        (["split", "missing", "0"], "does not exist"),
        (["watch", "missing"], "does not exist"),
        (["create", "--scalable", "wrong"], "exists"),
        (["create", "wrong"], "scalable"),
        (["create", "--scalable", "--segments", "0", "none"], "1 to 4096"),
        (["delete", "topic://public/default/missing"], "does not exist"),
        (["migrate", "missing"], "no classic topic"),
    ],
)
def test_refusals_are_one_line_with_advice(
    broker: BrokerProcess, capsys: Capture, arguments: list[str], advice: str
) -> None:
    topics(broker, "create", "--scalable", "wrong")
    capsys.readouterr()
    assert topics(broker, *arguments) == 1
    assert advice in refused(capsys)


@pytest.mark.parametrize(
    "action", ["create", "split", "merge", "migrate", "watch", "explain", "policy", "stats", "list", "delete"]
)
def test_every_action_has_help(capsys: Capture, action: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["topics", action, "--help"])
    assert ended.value.code == 0
    assert "usage: anabranch topics" in capsys.readouterr().out


# -- watch


def watching(broker: BrokerProcess, topic: str) -> list[str]:
    options = ["--admin-url", broker.admin_url, "watch", topic, "--interval", "30"]
    return [sys.executable, "-m", "anabranch.cli", "topics", *options]


def test_in_a_pipe_each_change_is_a_line_at_once(broker: BrokerProcess) -> None:
    """The interval is longer than the test: it is the layout watch that tells."""
    topics(broker, "create", "--scalable", "piped")
    with subprocess.Popen(
        watching(broker, "piped"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline().decode()
        assert "topic://public/default/piped epoch 0: active 0[0000-ffff]; 0 sealed" in first
        topics(broker, "split", "piped", "0")
        told = process.stdout.readline().decode()
        assert "epoch 1: 0 → 1, 2; active 1[0000-7fff] 2[8000-ffff]; 1 sealed" in told
        process.send_signal(signal.SIGINT)
        rest_of_it, errors = process.communicate(timeout=30)
    assert (process.returncode, rest_of_it, errors) == (0, b"", b"")


def test_deleting_the_topic_ends_the_watch(broker: BrokerProcess) -> None:
    topics(broker, "create", "--scalable", "vanishes")
    with subprocess.Popen(watching(broker, "vanishes"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        topics(broker, "delete", "vanishes")
        assert process.stdout.readline() == b"topic://public/default/vanishes was deleted\n"
        assert process.wait(30) == 0


class Terminal:
    """A program on a terminal of its own, 24 lines by 80 columns."""

    def __init__(self, command: list[str]) -> None:
        environ = os.environ | {"TERM": "xterm", "LANG": "C.UTF-8", "LINES": "24", "COLUMNS": "80"}
        ours, theirs = pty.openpty()
        self._fd = ours
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
        os.close(theirs)
        self.text = ""

    def read_until(self, pattern: str) -> None:
        while not re.search(pattern, self.text):
            self.text += self._read()

    def read_all(self) -> None:
        while piece := self._read(end=True):
            self.text += piece

    def _read(self, end: bool = False) -> str:
        try:
            return os.read(self._fd, 65536).decode(errors="replace")
        except OSError:
            # How a terminal says that nobody writes to it any more.
            assert end, f"ended early: {self.text}"
            return ""

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


@pytest.fixture
def terminal(broker: BrokerProcess) -> Iterator[Terminal]:
    topics(broker, "create", "--scalable", "seen")
    made = Terminal(watching(broker, "seen"))
    yield made
    made.close()


def test_on_a_terminal_the_picture_is_redrawn_and_everything_is_as_before_afterwards(
    broker: BrokerProcess, terminal: Terminal
) -> None:
    terminal.read_until("Ctrl-C ends")
    assert terminal.text.startswith("\x1b[?1049h\x1b[?25l")
    assert "active  ├" in terminal.text
    topics(broker, "split", "seen", "0")
    terminal.read_until("epoch 1 ")
    terminal.read_until("sealed  ├─+ 0 ─+┤")
    terminal.process.send_signal(signal.SIGINT)
    terminal.read_all()
    assert terminal.process.wait(30) == 0
    assert terminal.text.endswith("\x1b[?25h\x1b[?1049l")


def test_the_picture_survives_a_broker_that_is_gone_for_a_while() -> None:
    with_gap = BrokerProcess()
    try:
        with_gap.start()
        topics(with_gap, "create", "--scalable", "t")
        command = watching(with_gap, "t")
        command[-1] = "0.2"
        screen = Terminal(command)
        try:
            screen.read_until("Ctrl-C ends")
            with_gap.kill()
            screen.read_until("cannot reach .*trying again")
            with_gap.start()
            screen.text = ""
            screen.read_until("Ctrl-C ends")
        finally:
            screen.close()
    finally:
        with_gap.discard()


# -- redirects


class Redirecting(http.server.BaseHTTPRequestHandler):
    """Sends every request elsewhere, as a broker does that does not lead the topic."""

    target = ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(307)
        self.send_header("Location", f"{self.target}{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_DELETE = do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def redirecting() -> Iterator[tuple[str, type[Redirecting]]]:
    handler = type("Handler", (Redirecting,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_commands_follow_a_redirect_to_the_leader(
    broker: BrokerProcess, capsys: Capture, redirecting: tuple[str, type[Redirecting]]
) -> None:
    url, handler = redirecting
    handler.target = broker.admin_url
    for arguments in (
        ["create", "--scalable", "--property", "a=b", "led"],
        ["split", "led", "0"],
        ["stats", "led"],
    ):
        assert main(["topics", "--admin-url", url, *arguments]) == 0
    assert "2 active, 1 sealed" in capsys.readouterr().out
    assert rest.call(url, "GET", "/admin/v2/scalable/public/default/led")["properties"] == {"a": "b"}


def test_redirects_in_circles_are_given_up(
    capsys: Capture, redirecting: tuple[str, type[Redirecting]]
) -> None:
    url, handler = redirecting
    handler.target = url
    assert main(["topics", "--admin-url", url, "split", "t", "0"]) == 1
    assert "circles" in refused(capsys)
