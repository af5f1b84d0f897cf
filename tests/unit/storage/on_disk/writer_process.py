"""A process that appends to a log as fast as it can and says on stdout what was confirmed. For tests that kill it.

    python writer_process.py ROOT INCARNATION SEED

Each line is `confirmed LEDGER ENTRIES STATES`, or `lost LEDGER`. Entries are `LEDGER:NUMBER:` and filler.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.port import LogError

LEDGERS = (1, 2, 3)


class Teller:
    def __init__(self, ledger: int) -> None:
        self.ledger = ledger
        self.is_lost = False

    def confirmed(self, entries_end: int, state_end: int) -> None:
        sys.stdout.write(f"confirmed {self.ledger} {entries_end} {state_end}\n")
        sys.stdout.flush()

    def lost(self, error: LogError) -> None:
        self.is_lost = True
        sys.stdout.write(f"lost {self.ledger}\n")
        sys.stdout.flush()


async def main(root: Path, incarnation: str, seed: int) -> None:
    chance = random.Random(seed)
    store = FileLogStore(
        root, clock_ms=lambda: 0, incarnation=Incarnation(incarnation), is_shared=True, file_bytes=1 << 20
    )
    await store.start()
    tellers = [Teller(one) for one in LEDGERS]
    record = "/managed-ledgers/public/default/persistent/t"
    writers = [
        store.open_ledger(LedgerId(one.ledger), one, "public/default", f"{record}{one.ledger}")
        for one in tellers
    ]
    while not all(one.is_lost for one in tellers):
        for writer, teller in zip(writers, tellers, strict=True):
            if teller.is_lost:
                continue
            for _ in range(chance.randint(0, 20)):
                writer.append(
                    b"%d:%d:" % (teller.ledger, writer.next_entry) + bytes(chance.randint(0, 2000)), 1
                )
            writer.append_state(b"+")
        await asyncio.sleep(chance.choice((0, 0, 0.001)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
