"""A broker, or several, as users start them, with rights, attacked namespaces and bystanders; and what is read back."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb
from harness.broker_process import BrokerProcess, RestFailed
from harness.cluster_process import ClusterProcess
from harness.peer import C
from hostile import bystanders
from hostile.link import SECRET_SETTING, Link, Refused, token
from hostile.states import BOTH, CONSUMER, DEDUP, EXPIRING, PLAIN, PRODUCER, TENANT

MIB: Final = 1 << 20
HOME: Final = "bystander/home"
# Small files and frequent upkeep: checkpoints, trimming and rewriting happen all the time.
SETTINGS: Final = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "superUserRoles": "admin",
    "tokenSecretKey": SECRET_SETTING,
    "logFileBytes": 2 * MIB,
    "logCacheBytes": 16 * MIB,
    "logDiskReserveBytes": MIB,
    "logLingerSeconds": 1,
    "retentionCheckIntervalInSeconds": 1,
    "backlogQuotaCheckIntervalInSeconds": 2,
    "brokerServiceCompactionMonitorIntervalInSeconds": 1,
    "hiddenWritesTimeoutSeconds": 2,
    "hiddenWritesCheckIntervalSeconds": 0.5,
    "activeConsumerFailoverDelayTimeMillis": 0,
    "scalableTopicAutoScaleEnabled": False,
    # Witnesses of topics that wait for their turn do not listen meanwhile.
    "keepAliveIntervalSeconds": 3600,
}
READ_S: Final = 60.0


class Rig:
    def __init__(self, folder: Path, brokers: int | None = None) -> None:
        """As many brokers as `BROKERS` in the environment says, unless a number is given."""
        self.folder = folder
        self.brokers = int(os.environ.get("BROKERS", 1)) if brokers is None else brokers
        kind = ClusterProcess if self.brokers > 1 else BrokerProcess
        self.broker = kind(folder, SETTINGS, token=token("admin"), brokers=self.brokers)
        self.rounds = 0
        self._crowd: subprocess.Popen[str] | None = None
        self._histories: list[tuple[str, Path]] = []

    def __enter__(self) -> Rig:
        self.broker.__enter__()
        self._prepare()
        return self

    def __exit__(self, *exc: object) -> None:
        self.dismiss()
        self.broker.__exit__(None, None, None)

    def _prepare(self) -> None:
        put, post = self.broker.put, self.broker.post
        for tenant in (TENANT, HOME.partition("/")[0]):
            put(f"tenants/{tenant}", {"adminRoles": ["admin"], "allowedClusters": ["standalone"]})
        for namespace in (PLAIN, DEDUP, EXPIRING, HOME):
            put(f"namespaces/{namespace}")
        for namespace in (PLAIN, DEDUP, EXPIRING):
            for role, actions in (
                (PRODUCER, ["produce"]),
                (CONSUMER, ["consume"]),
                (BOTH, ["produce", "consume"]),
            ):
                post(f"namespaces/{namespace}/permissions/{role}", actions)
        post(f"namespaces/{HOME}/permissions/{bystanders.ROLE}", ["produce", "consume"])
        post(f"namespaces/{DEDUP}/deduplication", True)
        post(f"namespaces/{EXPIRING}/messageTTL", 1)
        put(f"namespaces/{PLAIN}/compactionThreshold", 20_000)

    # -- brokers

    @property
    def pids(self) -> list[int]:
        """Of every process that serves: with several brokers these, their supervisor and their metadata."""
        if isinstance(self.broker, ClusterProcess):
            return [self.broker.pid, *self.broker.pids.values()]
        return [self.broker.pid]

    @property
    def ports(self) -> list[int]:
        """The binary port of each broker."""
        if isinstance(self.broker, ClusterProcess):
            return sorted(urlsplit(url).port or 0 for url in self.broker.own_urls.values())
        return [self.broker.port]

    def port_of(self, topic: str) -> int:
        """The binary port at which the topic is served."""
        if self.brokers == 1:
            return self.broker.port
        with Link(self.broker.port) as link:
            link.sign_in("admin")
            return link.owner_port(topic)

    def longest_turn_ms(self) -> float:
        """The most processor time that one turn of a broker's event loop used in the last minute."""
        own = [f"127.0.0.1:{self.broker.http_port}"]
        return max(map(_longest_turn_ms, self.broker.get("brokers/standalone") if self.brokers > 1 else own))

    # -- bystanders

    def invite(self) -> None:
        """Bystanders on topics of their own: a plain one, one of batches, one with deduplication, and a segment."""
        self.rounds += 1
        folder = self.folder / f"round-{self.rounds}"
        folder.mkdir()
        home, number = f"persistent://{HOME}", self.rounds
        topics = [f"{home}/single-{number}", f"{home}/batch-{number}", f"{home}/dedup-{number}"]
        self.broker.put(f"scalable/{HOME}/river-{number}")
        topics.append(f"segment://{HOME}/river-{number}/0000-ffff-0")
        ports = [self.port_of(topic) for topic in topics]
        for port, topic in zip(ports, topics, strict=True):
            with Link(port) as link:
                link.sign_in(bystanders.ROLE)
                # Nothing that this subscription has not acknowledged is ever given up, and it acknowledges nothing.
                link.must(link.subscribe_to(topic, "keeping", initialPosition=pb.CommandSubscribe.Earliest))
        self.broker.post(f"persistent/{HOME}/dedup-{number}/deduplicationEnabled", True)
        self._histories += [(topic, folder / f"{n}.history") for n, topic in enumerate(topics)]
        with (folder / "bystanders.log").open("w") as errors:
            self._crowd = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hostile.bystanders", str(folder)),
                    *(f"{port}={topic}" for port, topic in zip(ports, topics, strict=True)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def _tell(self, word: str) -> None:
        assert self._crowd is not None
        assert self._crowd.stdin is not None
        self._crowd.stdin.write(word + "\n")
        self._crowd.stdin.flush()

    def ask(self, word: str) -> dict[str, Any]:
        """`check` or `report`: see `bystanders`."""
        self._tell(word)
        assert self._crowd is not None
        assert self._crowd.stdout is not None
        line = self._crowd.stdout.readline()
        if not line:
            raise RuntimeError("the bystanders' process has ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def go_on(self) -> None:
        self._tell("go on")

    def dismiss(self) -> None:
        if self._crowd is not None:
            with contextlib.suppress(OSError):
                self._tell("stop")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._crowd.wait(15)
            self._crowd.kill()
            self._crowd.wait()
            for pipe in (self._crowd.stdin, self._crowd.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._crowd = None

    def losses(self, *, latest_only: bool = True) -> Iterator[str]:
        """What was acknowledged to bystanders and is not there, or not as it was, or not in its order."""
        histories = self._histories[-4:] if latest_only else self._histories
        for topic, path in histories:
            if path.exists():
                try:
                    yield from _lost(self.port_of(topic), topic, path)
                except (OSError, TimeoutError, AnabranchError, Refused) as error:
                    yield f"{topic} cannot be read: {type(error).__name__}: {error}"

    # -- attacked topics

    def make_scalable(self, name: str) -> None:
        with contextlib.suppress(RestFailed):
            self.broker.put(f"scalable/{PLAIN}/{name}")

    def drop(self, topic: str) -> None:
        """With all that was attached to it."""
        domain, _, rest = topic.partition("://")
        path = f"scalable/{rest.rpartition('/')[0]}" if domain == "segment" else f"{domain}/{rest}"
        self.broker.rest("DELETE", f"{path}?force=true")

    def stats(self, topic: str) -> Any:
        domain, _, rest = topic.partition("://")
        return self.broker.get(f"{domain}/{rest}/stats") if domain != "segment" else {}


def _longest_turn_ms(address: str) -> float:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    name = "anabranch_event_loop_turn_cpu_max_seconds"
    return max(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)) * 1000


def _lost(port: int, topic: str, path: Path) -> Iterator[str]:
    wanted = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.count(" ") == 3]
    if not wanted:
        return
    found = _stored(port, topic, (int(wanted[-1][1]), int(wanted[-1][2])))
    at = -1
    for number, ledger, entry, digest in wanted:
        place = (int(ledger), int(entry))
        if place not in found:
            yield f"{topic}: message {number}, acknowledged as {ledger}:{entry}, is gone"
            continue
        index, contents = found[place]
        if digest not in map(bystanders.digest, contents):
            yield f"{topic}: message {number}, acknowledged as {ledger}:{entry}, is another one"
        elif index < at:
            yield f"{topic}: message {number} comes before an earlier one"
        at = max(at, index)


def _stored(port: int, topic: str, last: tuple[int, int]) -> dict[tuple[int, int], tuple[int, list[bytes]]]:
    """Each entry up to `last`: its place in the order of delivery and its messages."""
    found: dict[tuple[int, int], tuple[int, list[bytes]]] = {}
    with Link(port) as link:
        link.sign_in(bystanders.ROLE)
        link.must(link.subscribe_to(topic, "keeping", 1, initialPosition=pb.CommandSubscribe.Earliest))
        link.flow(1_000_000)
        while (max(found) if found else (-1, -1)) < last:
            try:
                command, entry = link.receive(READ_S if not found else 5.0)
            except TimeoutError:
                break
            if command.type == C.PING:
                link.send(C(type=C.PONG, pong=pb.CommandPong()))
            elif command.type == C.MESSAGE:
                place = command.message.message_id
                found.setdefault((place.ledgerId, place.entryId), (len(found), bystanders.messages(entry)))
    return found
