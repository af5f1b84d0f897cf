"""A broker's machine, through its lives."""

from __future__ import annotations

from typing import Final

from anabranch.broker.broker import Broker
from anabranch.simulation.machine.bucket import SimObjectLog
from anabranch.simulation.machine.disk import SlowLog
from anabranch.simulation.machine.loop import Host
from anabranch.simulation.machine.store import Store

PORT: Final = 6650


class Node:
    """A broker's machine. `host` and `broker` are those of its present life."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = f"pulsar://{name}:{PORT}"
        self.lives = 0
        self.host = Host(name)
        self.host.is_dead = True
        self.store: Store
        self.log: SlowLog | SimObjectLog
        self.broker: Broker
        self.is_up = False

    def __repr__(self) -> str:
        return f"{self.name}.{self.lives}"
