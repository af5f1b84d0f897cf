"""Unix sockets that only this user can reach: their files, their addresses, and who is at the other end."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# The kernel's limit is 108 bytes with a final zero. Longer paths are reached through the folder's descriptor.
_ADDRESS_BYTES_MAX: Final = 107
_PEER: Final = struct.Struct("3i")


@contextlib.contextmanager
def address_of(path: Path) -> Iterator[str]:
    """The socket's address, which may be used within the context only."""
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listening(path: Path, backlog: int = 128) -> socket.socket:
    """A socket that listens at the path, in place of a former one. The caller makes sure that no process listens there.

    The folder is made, for this user only, if it is missing.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        with address_of(path) as address:
            listener.bind(address)
        # No client can connect before it listens. The mask for new files is the whole process's, and other threads make
        # files and folders at this time.
        path.chmod(0o600)
        listener.listen(backlog)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end."""
    pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid


def open_process(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended; None if there is no such process to be seen."""
    try:
        return os.pidfd_open(pid)
    except (OSError, OverflowError):
        return None
