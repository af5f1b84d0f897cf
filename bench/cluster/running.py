"""The cluster under test, as its operator runs it: `anabranch standalone --brokers N` in a folder of its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from soak.cluster_process import METADATA, ClusterProcesses

from anabranch.model.bundles import bundle_hash
from anabranch.model.names import TopicName
from bench import usage

# The first of two bundles.
HALF = "0x00000000_0x80000000"


class Cluster(ClusterProcesses):
    """One broker is one process, without a supervisor."""

    def cpu_seconds(self) -> float:
        """Of the brokers, the metadata process and the supervisor."""
        return usage.cpu_seconds(self.pid)

    @property
    def broker_pids(self) -> dict[str, int]:
        if self.brokers == 1:
            return {"broker-0": self.pid}
        return {name: pid for name, pid in sorted(self.pids.items()) if name != METADATA}

    def rest(self, method: str, path: str, body: object = None, *, timeout: float = 30.0) -> Any:
        """As a broker's; an error says what the broker answered."""
        try:
            return super().rest(method, path, body, timeout=timeout)
        except urllib.error.HTTPError as refused:
            raise RuntimeError(f"{method} {path}: {refused.code} {refused.read()[:300]!r}") from refused

    def end(self) -> None:
        """Ends all processes in order: what a killed supervisor's brokers have used could not be known any more."""
        if self.is_running:
            try:
                self.terminate()
            except subprocess.TimeoutExpired:
                self.kill()

    def namespace(self, name: str, bundles: int) -> None:
        """Makes the namespace `public/{name}`; one bundle would mean the default number of them."""
        step = 2**32 // bundles
        edges = [f"0x{number * step:08x}" for number in range(bundles)] + ["0xffffffff"]
        body = {"bundles": {"boundaries": edges, "numBundles": bundles}}
        self.rest("PUT", f"namespaces/public/{name}", body)

    @staticmethod
    def topics_in_half(name: str, count: int) -> list[str]:
        """Names of topics in the first of two bundles of the namespace `public/{name}`."""
        found: list[str] = []
        number = 0
        while len(found) < count:
            topic = f"persistent://public/{name}/t-{number}"
            if bundle_hash(TopicName.parse(topic)) < 0x80000000:
                found.append(topic)
            number += 1
        return found

    def bundles(self, name: str) -> list[str]:
        edges = self.rest("GET", f"namespaces/public/{name}/bundles")["boundaries"]
        return [f"{first}_{last}" for first, last in pairwise(edges)]

    def move(self, name: str, bundle: str, target: str) -> None:
        """The broker with that HTTP address owns the bundle from now on."""
        self.rest("PUT", f"namespaces/public/{name}/{bundle}/unload?destinationBroker={target}")

    def spread(self, name: str) -> None:
        """Gives each broker as many bundles of the namespace as the others."""
        if self.brokers > 1:
            targets = self.addresses()
            for number, bundle in enumerate(self.bundles(name)):
                self.move(name, bundle, targets[number % len(targets)])

    def owner_port(self, topic: str) -> int:
        """The binary port of the topic's owner."""
        found = self.get(f"127.0.0.1:{self.http_port}", f"lookup/v2/topic/persistent/{topic}")
        return int(found["brokerUrl"].rpartition(":")[2])

    @property
    def ports(self) -> dict[str, int]:
        """The binary port of each broker, by the name of its process."""
        if self.brokers == 1:
            return {"broker-0": self.port}
        first = int(self.settings["ANABRANCH_brokersFirstPort"])
        return {f"broker-{number}": first + number for number in range(self.brokers)}

    def port_of(self, address: str) -> int:
        """The binary port of the broker with that HTTP address."""
        first = int(self.settings["ANABRANCH_brokersFirstWebPort"])
        return self.ports[f"broker-{int(address.rpartition(':')[2]) - first}"]


@contextmanager
def running(brokers: int, settings: Mapping[str, object] | None = None) -> Iterator[Cluster]:
    """Serving brokers; their processes and their folder are gone afterwards."""
    scratch = Path(tempfile.mkdtemp(prefix="anabranch-cluster-bench-"))
    cluster = Cluster(scratch / "data", settings, brokers=brokers)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(scratch, ignore_errors=True)


def until(claim: Callable[[], bool], within_s: float, what: str) -> None:
    ends = time.monotonic() + within_s
    while not claim():
        if time.monotonic() > ends:
            raise TimeoutError(f"not within {within_s:.0f} s: {what}")
        time.sleep(0.02)
