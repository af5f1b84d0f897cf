"""Old files in an object store, here a folder, under the faults of a soak: all of them move, soon after they are full.

In the end every object that an index file names must be there, and every record in it whole.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from anabranch.storage.object.obstore_medium import open_medium
from anabranch.storage.on_disk.files import OsFiles
from anabranch.storage.tier.checking import survey, verify


def settings(folder: Path) -> dict[str, object]:
    return {
        "logTierUrl": f"file://{folder / 'objects'}",
        "logTierLocalBytes": 1,
        "logFileBytes": 1 << 20,
        # Long enough to be moved, and short enough to be deleted again.
        "defaultRetentionTimeInMinutes": 1,
        "defaultRetentionSizeInMB": -1,
    }


def lose_one(folder: Path) -> bool:
    """Sabotage: deletes an object. False if there is none."""
    found = sorted((folder / "objects").rglob("*.led"))
    if found:
        found[0].unlink()
    return bool(found)


def faults(folder: Path) -> tuple[str, list[str]]:
    """What there is in the end, and what is wrong with it. All brokers have ended."""
    return asyncio.run(_faults(folder))


async def _faults(folder: Path) -> tuple[str, list[str]]:
    root = folder / "data" / "log"
    medium = open_medium(f"objects://{folder / 'objects'}")
    found = await survey(OsFiles(), root, medium)
    wrong = [f"{key}: there is no such object" for key in found.missing]
    wrong += [f"{path}: the index file is damaged" for path in found.damaged]
    entries = 0
    async for _, count, bad in verify(OsFiles(), root, medium):
        entries += count
        wrong += map(str, bad)
    told = f"{found.objects} moved files of {found.size} bytes with {entries} entries, {len(found.orphans)} orphans"
    return told, wrong
