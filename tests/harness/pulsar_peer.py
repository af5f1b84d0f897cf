"""A real Apache Pulsar 5.0.0-M1, started by the scripts of a peers folder that is not part of this repository."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from soak.client.relay import Address, Relay
from soak.ports import free_port

START_MAX_S = 180.0
GRACE_S = 4.0
MESSAGE_BYTES_MAX = 5 << 20


def script() -> Path:
    here = Path(__file__).resolve().parents[2]
    peers = Path(os.environ.get("PEERS_DIR", here.parent / "shared" / "peers"))
    return peers / "pulsar" / "start.sh"


def missing() -> str | None:
    """Why it cannot be started here."""
    return None if script().exists() else f"{script()} is not there: set PEERS_DIR"


class Passage:
    """A relay without faults, on a thread of its own: the address that the broker advertises must always be served."""

    def __init__(self, listen: Address, behind: Address) -> None:
        self._listen, self._behind = listen, behind
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._is_open = threading.Event()
        self._thread.start()
        assert self._is_open.wait(10), f"nothing can listen on {listen}"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        async with Relay(self._listen, self._behind, random.Random(0)):
            self._is_open.set()
            await self._over.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)


class PulsarPeer:
    """A context manager. Clients connect through a passage, which a run may replace by a relay of its own."""

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        self.folder = folder
        self._settings = dict(settings or {})
        self.port, self.http_port = free_port(), free_port()
        self.advertised = Address("127.0.0.1", free_port())
        self.behind = Address("127.0.0.1", self.port)
        self._passage: Passage | None = None

    @property
    def url(self) -> str:
        return f"pulsar://{self.advertised.host}:{self.advertised.port}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def _environment(self) -> dict[str, str]:
        return os.environ | {
            "PULSAR_DATA": str(self.folder / "pulsar"),
            "BROKER_PORT": str(self.port),
            "WEB_PORT": str(self.http_port),
            "EXTRA_CONF": str(self.folder / "extra.conf"),
            "PULSAR_MEM": "-Xms1g -Xmx1g -XX:MaxDirectMemorySize=1g",
            "PULSAR_GC": "-XX:+UseSerialGC",
            "WIPE": "1",
            "LOG_LEVEL": "WARN",
        }

    def __enter__(self) -> Self:
        settings = {
            "advertisedListeners": f"internal:pulsar://{self.advertised.host}:{self.advertised.port}",
            "brokerDeduplicationEnabled": "true",
            "scalableTopicConsumerSessionGracePeriodSeconds": int(GRACE_S),
            **self._settings,
        }
        (self.folder / "extra.conf").write_text(
            "".join(f"\n{name}={value}" for name, value in settings.items())
        )
        self.pass_through()
        subprocess.run(
            [str(script())], env=self._environment, check=True, timeout=START_MAX_S, stdout=subprocess.DEVNULL
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(
            [str(script().parent / "stop.sh")], env=self._environment, check=True, stdout=subprocess.DEVNULL
        )
        self.make_way()

    def pass_through(self) -> None:
        if self._passage is None:
            self._passage = Passage(self.advertised, self.behind)

    def make_way(self) -> None:
        """Frees the advertised address for another listener."""
        if self._passage is not None:
            self._passage.close()
            self._passage = None
