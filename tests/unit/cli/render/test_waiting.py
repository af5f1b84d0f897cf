"""The line that a terminal shows while a broker takes its time."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n["public"]'


def test_a_long_wait_is_told_on_a_terminal_and_gone_with_the_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = ["tenants", "list", "--admin-url", f"http://127.0.0.1:{port}"]
        theirs, ours = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-m", "anabranch.cli", *command],
            stdout=subprocess.PIPE,
            stderr=ours,
            env={**os.environ, "TERM": "xterm"},
        ) as process:
            os.close(ours)
            asking, _ = server.accept()
            shown = b""
            while b"waiting for http://127.0.0.1" not in shown:
                shown += os.read(theirs, 1000)
            asking.sendall(ANSWER)
            asking.close()
            assert process.stdout is not None
            assert process.stdout.read() == b"public\n"
            assert process.wait(60) == 0
            while not shown.endswith(b"\r\x1b[K"):
                shown += os.read(theirs, 1000)
        os.close(theirs)


def test_where_there_is_no_terminal_nothing_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = ["tenants", "list", "--admin-url", f"http://127.0.0.1:{port}"]
        with subprocess.Popen(
            [sys.executable, "-m", "anabranch.cli", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            asking, _ = server.accept()
            asking.sendall(ANSWER)
            asking.close()
            assert process.communicate(timeout=60) == (b"public\n", b"")
