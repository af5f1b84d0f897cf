"""Chunked messages on the scalable topic: their connection is cut and their segment is sealed between two chunks."""

from __future__ import annotations

from typing import ClassVar

from anabranch.simulation.plays.in_doubt import InDoubt
from anabranch.simulation.world import workload
from anabranch.simulation.world.kinds import TroubleKind


class Chunked(InDoubt):
    kind: ClassVar = TroubleKind.CHUNKS

    def start(self) -> None:
        name = f"{workload.CHUNKING}-0"
        count = self.chance.randint(8, 20)
        self.client(
            name, workload.produce(self.world, name, count, on_post=lambda key: self.trouble(name, key))
        )
