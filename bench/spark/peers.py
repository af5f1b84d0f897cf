"""Spark's Kafka connector and a Kafka to go with it, by the scripts of a peers folder that is not part of this
repository: `kafka/fetch.sh`, `kafka/broker.sh`, and the list of jars `spark/pom.xml`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from bench.systems import end, free_port

# A broker may take a while to start on a busy machine.
START_S_MAX = 120.0


class PeersMissing(Exception):
    """A peer that is needed is missing; the text says what to do."""


class Kafka:
    """One broker on empty data. `scratch` holds its jars, kept, and its data, which goes with it."""

    def __init__(self, peers: Path, scratch: Path) -> None:
        for name in ("kafka/broker.sh", "kafka/fetch.sh", "spark/pom.xml"):
            if not (peers / name).exists():
                raise PeersMissing(
                    f"{peers / name} is not there: give --peers DIR (or PEERS_DIR) with scripts that start Kafka "
                    "and list the connector's jars, or --without-kafka for ours and Parquet alone"
                )
        self._peers = peers
        self._home = scratch
        self._port = 0
        self.pid = 0

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def _environment(self) -> dict[str, str]:
        return os.environ | {"ANCHORS_DATA": str(self._home), "KAFKA_PORT": str(self._port)}

    def start(self) -> None:
        if not (self._home / "kafka" / "libs").exists():
            subprocess.run([str(self._peers / "kafka" / "fetch.sh")], env=self._environment, check=True)
        self._port = free_port()
        environment = self._environment | {"KAFKA_CPORT": str(free_port())}
        script = str(self._peers / "kafka" / "broker.sh")
        subprocess.run(
            [script, "start"], env=environment, check=True, stdout=subprocess.DEVNULL, timeout=START_S_MAX
        )
        self.pid = int((self._home / "kafka" / "broker.pid").read_text())

    def stop(self) -> None:
        end(self.pid, 30)
        self.pid = 0
        for name in ("logs", "meta"):
            shutil.rmtree(self._home / "kafka" / name, ignore_errors=True)

    def jars(self) -> list[Path]:
        """The jars of the connector, fetched once."""
        folder = self._home / "spark" / "jars"
        if not any(folder.glob("*.jar")):
            # Maven may want to write beside it.
            pom = self._home / "spark" / "pom.xml"
            pom.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._peers / "spark" / "pom.xml", pom)
            options = f"-DoutputDirectory={folder}", "-DincludeScope=runtime"
            subprocess.run(
                ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *options],
                check=True,
            )
        return sorted(folder.glob("*.jar"))
