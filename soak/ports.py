"""Ports for broker processes that no other test or soak of this machine takes, even while a broker is down."""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# Below the range of ports for outgoing connections, which would race with ours.
_PORTS = range(20_000, 32_000)
_BLOCK = 100


def free_port() -> int:
    """A port of this process's block that nobody listens on; the same one is not given again for a long time."""
    for port in itertools.islice(_own_ports(os.getpid()), _BLOCK):
        with socket.socket() as probe:
            # As servers do: connections that have ended a moment ago do not keep it.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"all {_BLOCK} ports of this process are in use")


@cache
def _own_ports(_pid: int) -> Iterator[int]:
    """The ports of a block, again and again. A lock on the block's file keeps other processes from it.

    The lock ends with the process, and with those that inherited its open file.
    """
    folder = Path(tempfile.gettempdir()) / "anabranch-ports"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    for first in range(_PORTS.start, _PORTS.stop, _BLOCK):
        descriptor = os.open(folder / str(first), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            continue
        return itertools.cycle(range(first, first + _BLOCK))
    raise RuntimeError(f"every block of ports in {folder} is taken by another process")
