"""A process that takes an incarnation's ledgers over and says on stdout what it found. For tests of `python -O`.

    python heir_process.py ROOT INCARNATION

One line: `optimize LEVEL`, then `found LEDGER ENTRIES STATES` for each ledger.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from anabranch.model.position import Incarnation
from anabranch.storage.on_disk.file_store import FileLogStore


async def main(root: Path, incarnation: str) -> None:
    store = FileLogStore(root, clock_ms=lambda: 1, is_shared=True)
    await store.start()
    print("optimize", sys.flags.optimize)
    for ledger, state in (await store.take(Incarnation(incarnation), None)).items():
        print("found", ledger, state.entries_end, len(state.deltas))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
