"""The process that rewrites files: one job on stdin, its outcome on stdout. Started by `reclaim.py`.

It is a process of its own, because copying and checking gigabytes in the broker's process would delay its event loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from anabranch.storage.on_disk.files import OsFiles
from anabranch.storage.on_disk.rewrite import RewriteDone, RewriteJob, run_job

# The worker must import this very package, however the broker found it.
WORKER_PATH = os.pathsep.join(
    filter(None, (str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH")))
)


async def rewrite_in_process(job: RewriteJob, *, lock: int | None = None) -> RewriteDone:
    """Runs the job in a process of its own and waits for it. `lock` is a lock that the process holds as well: it stays
    locked until the process ends, also if the broker is killed."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "anabranch.storage.on_disk.rewrite_worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=() if lock is None else (lock,),
        env={**os.environ, "PYTHONPATH": WORKER_PATH},
    )
    try:
        out, _ = await worker.communicate(msgspec.json.encode(job))
    except asyncio.CancelledError:
        worker.kill()
        await worker.wait()
        raise
    if worker.returncode != 0:
        raise OSError(f"the rewriting process ended with {worker.returncode}")
    return _decode_done(out)


_decode_job = msgspec.json.Decoder(RewriteJob).decode
_decode_done = msgspec.json.Decoder(RewriteDone).decode


def main() -> None:
    # Everything else on this machine is more urgent.
    os.nice(10)
    done = run_job(OsFiles(), _decode_job(sys.stdin.buffer.read()))
    give(msgspec.json.encode(done))


def give(answer: bytes) -> None:
    """Writes the outcome for the broker, and ends this process in silence if the broker is gone."""
    try:
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # At once, since the interpreter would try to write the rest as it ends.
        os._exit(0)


if __name__ == "__main__":
    main()
