"""Becomes another user and says what the metadata process answers to it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

socket_path = Path(sys.argv[1])
os.chdir(socket_path.parent)  # The folders above may be closed to the other user.
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(30)
    connection.connect(socket_path.name)
    try:
        connection.sendall(bytes.fromhex(sys.argv[2]))
        print("answered" if connection.recv(100) else "closed")
    except ConnectionError:
        print("closed")
