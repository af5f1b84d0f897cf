"""Clients of the kill test that create the same new subscription at once, the first of which disconnects.

Each round creates one subscription from several sockets. A subscription that was confirmed to any of them must exist in
the end, however often the broker was killed since; and readers that were refused, or did not wait for an answer, must
leave nothing behind.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import Any

from anabranch.wire import pulsar_pb2 as pb
from soak.broker import BrokerProcess
from soak.checker import Violations
from soak.link import Kind, Link, Refused, owner_port

TOPIC = "public/soak/waits"
WAITERS = 3
ANSWER_SECONDS_MAX = 5.0
# How long the broker may take to notice that all clients have disconnected.
GONE_SECONDS_MAX = 10.0


class Waiting(threading.Thread):
    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        super().__init__(name="waiting", daemon=True)
        self.promised: set[str] = set()
        self._broker = broker
        self._random = random.Random(f"{seed} waiting")
        self._ending = threading.Event()
        self._rounds = 0

    def run(self) -> None:
        while not self._ending.wait(self._random.uniform(0.0, 0.3)):
            self._rounds += 1
            # The broker may be down, or die at any moment.
            with contextlib.suppress(OSError, Refused, TimeoutError):
                self._round(f"waited-{self._rounds}")

    def end(self) -> None:
        """One more round before it ends: no restart removes what is left behind now."""
        self._ending.set()
        self.join(60)
        self._rounds += 1
        self._round(f"waited-{self._rounds}")

    def _round(self, subscription: str) -> None:
        port = owner_port(self._broker.port, f"persistent://{TOPIC}", timeout=ANSWER_SECONDS_MAX)
        with contextlib.ExitStack() as stack:
            links = [stack.enter_context(Link(port, timeout=ANSWER_SECONDS_MAX)) for _ in range(WAITERS)]
            for link in links:
                link.send(_subscribe(subscription))
            if self._random.random() < 0.7:
                links.pop(0).close()
            for link in links:
                link.wait(lambda got: got.type == Kind.SUCCESS)
                self.promised.add(subscription)
            self._leave_behind(links[-1])

    def _leave_behind(self, link: Link) -> None:
        """One reader that is refused, and one that disconnects before it is answered."""
        sticky = pb.KeySharedMeta(keySharedMode=pb.STICKY)
        with contextlib.suppress(Refused):
            refused = _subscribe(
                f"sticky-{self._rounds}",
                kind=pb.CommandSubscribe.Key_Shared,
                durable=False,
                keySharedMeta=sticky,
            )
            link.ask(refused, Kind.SUCCESS)
        link.send(_subscribe(f"reader-{self._rounds}", consumer_id=2, durable=False))

    def judge(self, violations: Violations) -> None:
        """Once the load is over: all confirmed subscriptions exist, and no orphaned ones."""
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while self.promised:
            found = Violations()
            judge(
                self.promised,
                self._broker.rest("GET", f"persistent/{TOPIC}/stats")["subscriptions"],
                found,
            )
            if not found.count:
                return
            if time.monotonic() > deadline:
                for violation in found.found:
                    violations.add(violation)
                return
            time.sleep(0.2)


def judge(promised: set[str], found: dict[str, Any], violations: Violations) -> None:
    """`found` are the subscriptions in the topic's statistics, when no client is connected any more."""
    for name in sorted(promised - found.keys()):
        violations.add(f"{TOPIC}: subscription {name} was reported as made, and does not exist")
    for name, stats in sorted(found.items()):
        if stats["consumers"]:
            violations.add(f"{TOPIC}: subscription {name} has consumers of clients that are gone")
        elif not stats["isDurable"]:
            violations.add(f"{TOPIC}: the subscription {name} of a reader is left, and nobody owns it")


def _subscribe(
    subscription: str,
    *,
    consumer_id: int = 1,
    kind: int = pb.CommandSubscribe.Shared,
    durable: bool = True,
    **fields: Any,
) -> pb.BaseCommand:
    request = pb.CommandSubscribe(
        topic=f"persistent://{TOPIC}",
        subscription=subscription,
        subType=kind,  # type: ignore[arg-type]  # An int of SubType by construction.
        consumer_id=consumer_id,
        request_id=consumer_id,
        initialPosition=pb.CommandSubscribe.Latest,
        durable=durable,
        **fields,
    )
    if not durable:
        request.start_message_id.ledgerId = request.start_message_id.entryId = (1 << 64) - 1
    return pb.BaseCommand(type=Kind.SUBSCRIBE, subscribe=request)
