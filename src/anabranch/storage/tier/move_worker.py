"""The process that moves files: one request on stdin, its outcome on stdout. Started by `object_tier.py`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from anabranch.storage.core.tiered import TierDone, TierJob
from anabranch.storage.object.obstore_medium import open_for_large_objects, parse_url
from anabranch.storage.on_disk.files import OsFiles
from anabranch.storage.on_disk.rewrite_worker import WORKER_PATH, give
from anabranch.storage.port import LogError
from anabranch.storage.tier.copying import copy_files, settle_in_folder


class MoveRequest(msgspec.Struct, frozen=True):
    url: str
    # The process that asks. If it ends, the job is not wanted any more.
    asked_by: int
    job: TierJob


_decode_request = msgspec.json.Decoder(MoveRequest).decode
_decode_done = msgspec.json.Decoder(TierDone).decode


async def move_in_process(url: str, job: TierJob, lock: int | None) -> TierDone:
    """Runs the job in a process of its own and waits for it. `lock` is a lock that the process holds as well."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "anabranch.storage.tier.move_worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=() if lock is None else (lock,),
        env={**os.environ, "PYTHONPATH": WORKER_PATH},
    )
    try:
        out, _ = await worker.communicate(msgspec.json.encode(MoveRequest(url, os.getpid(), job)))
    except asyncio.CancelledError:
        worker.kill()
        await worker.wait()
        raise
    if worker.returncode != 0:
        return TierDone([], [], f"the moving process ended with {worker.returncode}")
    return _decode_done(out)


async def _move(request: MoveRequest) -> TierDone:
    try:
        medium = open_for_large_objects(request.url)
    except LogError as error:
        return TierDone([], [], str(error))
    where = parse_url(request.url)
    settle = settle_in_folder(Path(where.prefix)) if where.scheme == "objects" else lambda _: None
    try:
        return await copy_files(
            OsFiles(),
            medium,
            request.job,
            settle=settle,
            is_wanted=lambda: os.getppid() == request.asked_by,
        )
    finally:
        await medium.close()


def main() -> None:
    # Everything else on this machine is more urgent.
    os.nice(10)
    done = asyncio.run(_move(_decode_request(sys.stdin.buffer.read())))
    give(msgspec.json.encode(done))


if __name__ == "__main__":
    main()
