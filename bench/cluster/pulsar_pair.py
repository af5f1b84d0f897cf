"""Two brokers of Apache Pulsar with its load balancer, beside which transfers are measured.

They are three processes: a ZooKeeper, a broker with a bookie, and a second broker.

`PEERS_DIR` names the scripts that find Java and Pulsar's jars (`pulsar/env.sh`). The settings are those of its shipped
standalone, with a metadata store that two brokers can share; nothing is synced before it is confirmed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from soak.ports import free_port

from bench import usage
from bench.cluster.running import Cluster

START_S_MAX = 240.0
_EXTENSIONS = "org.apache.pulsar.broker.loadbalance.extensions"
SETTINGS = {
    "loadBalancerEnabled": "true",
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
    "loadManagerClassName": f"{_EXTENSIONS}.ExtensibleLoadManagerImpl",
    "loadBalancerLoadSheddingStrategy": f"{_EXTENSIONS}.scheduler.TransferShedder",
}
_FOUND = """
. "$1/pulsar/env.sh"
find_java
classpath "$1/pulsar" "$ANCHOR_DIR/pulsar.cp"
echo
printf '%s\\n' "${JAVA_FLAGS[@]}"
"""


def peers() -> Path | None:
    """The folder of the scripts, if it is named and has them."""
    named = os.environ.get("PEERS_DIR")
    found = None if named is None else Path(named)
    return found if found is not None and (found / "pulsar" / "env.sh").exists() else None


class PulsarPair:
    """What the hand-over needs of a cluster."""

    topics_in_half = staticmethod(Cluster.topics_in_half)

    def __init__(self, scripts: Path, folder: Path) -> None:
        self._scripts, self._folder = scripts, folder
        self._store_port, self.port, self._second = free_port(), free_port(), free_port()
        self._webs = (free_port(), free_port())
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        command = ["bash", "-c", _FOUND, "found", str(self._scripts)]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
        java, path, flags = found[0], found[1], [flag for flag in found[2:] if flag]
        log = f"-Dlog4j2.configurationFile={self._scripts / 'pulsar' / 'log4j2.xml'}"
        jvm = [java, *flags, log, "-Danchor.log.level=WARN", "-cp", path]
        big = ["-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g"]
        self._run(
            [
                jvm[0],
                "-Xmx256m",
                "-Dzookeeper.admin.enableServer=false",
                "-Dzookeeper.forceSync=no",
                *jvm[1:],
            ],
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(self._store_port),
            str(self._folder / "zookeeper"),
        )
        store = f"zk:127.0.0.1:{self._store_port}"
        self._run(
            [jvm[0], *big, *jvm[1:]],
            "org.apache.pulsar.PulsarStandaloneStarter",
            *("--config", str(self._configured(0, self.port)), "--metadata-url", store),
            *("--bookkeeper-dir", str(self._folder / "bookkeeper"), "--advertised-address", "127.0.0.1"),
            *("--no-functions-worker", "--no-stream-storage"),
        )
        self._await(1)
        self._run(
            [jvm[0], *big, *jvm[1:]],
            "org.apache.pulsar.PulsarBrokerStarter",
            *("-c", str(self._configured(1, self._second))),
        )
        self._await(2)

    def _configured(self, number: int, port: int) -> Path:
        marks = {"@BROKER_PORT@": str(port), "@WEB_PORT@": str(self._webs[number]), "@JOURNAL_SYNC@": "false"}
        text = (self._scripts / "pulsar" / "standalone.conf.in").read_text()
        for mark, value in marks.items():
            text = text.replace(mark, value)
        store = f"zk:127.0.0.1:{self._store_port}"
        own = SETTINGS | {"metadataStoreUrl": store, "configurationMetadataStoreUrl": store}
        kept = [line for line in text.splitlines() if line.partition("=")[0] not in own]
        path = self._folder / f"broker-{number}.conf"
        path.write_text("\n".join([*kept, *(f"{name}={value}" for name, value in own.items())]) + "\n")
        return path

    def _run(self, java: list[str], main: str, *arguments: str) -> None:
        with (self._folder / f"{main.rpartition('.')[2]}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*java, main, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._folder,
                    process_group=0,
                )
            )

    def _await(self, brokers: int) -> None:
        ends = time.monotonic() + START_S_MAX
        while time.monotonic() < ends:
            for process in self._processes:
                if process.poll() is not None:
                    raise ChildProcessError(f"{process.args!r} ended: see {self._folder}")
            # The namespace is made after the broker has begun to answer.
            with suppress(urllib.error.URLError, ConnectionError, TimeoutError, RuntimeError):
                if len(self.rest("GET", "brokers/standalone")) == brokers:
                    self.rest("GET", "namespaces/public/default")
                    return
            time.sleep(0.5)
        raise TimeoutError(f"{brokers} brokers of Pulsar are not there: see {self._folder}")

    def end(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # -- as `Cluster`

    def rest(self, method: str, path: str, body: object = None) -> Any:
        return self._call(f"http://127.0.0.1:{self._webs[0]}/admin/v2/{path}", method, body)

    def _call(self, url: str, method: str, body: object) -> Any:
        """Follows redirects of every method, which `urllib` does of GET only."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as refused:
            if refused.code == 307:
                return self._call(refused.headers["Location"], method, body)
            raise RuntimeError(f"{method} {url}: {refused.code} {refused.read()[:300]!r}") from refused
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text

    def namespace(self, name: str, bundles: int) -> None:
        step = 2**32 // bundles
        edges = [f"0x{number * step:08x}" for number in range(bundles)] + ["0xffffffff"]
        body = {"bundles": {"boundaries": edges, "numBundles": bundles}}
        self.rest("PUT", f"namespaces/public/{name}", body)

    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self._webs]

    def port_of(self, address: str) -> int:
        return (self.port, self._second)[self.addresses().index(address)]

    def owner_port(self, topic: str) -> int:
        url = f"http://{self.addresses()[0]}/lookup/v2/topic/persistent/{topic}"
        return int(self._call(url, "GET", None)["brokerUrl"].rpartition(":")[2])

    def move(self, name: str, bundle: str, target: str) -> None:
        self.rest("PUT", f"namespaces/public/{name}/{bundle}/unload?destinationBroker={target}")

    def cpu_seconds(self) -> float:
        return sum(usage.cpu_seconds(process.pid) for process in self._processes)


@contextmanager
def pulsar_pair(scripts: Path) -> Iterator[PulsarPair]:
    folder = Path(tempfile.mkdtemp(prefix="anabranch-pulsar-pair-"))
    pair = PulsarPair(scripts, folder)
    try:
        pair.start()
        yield pair
    finally:
        pair.end()
        shutil.rmtree(folder, ignore_errors=True)
