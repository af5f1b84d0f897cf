"""The reader of `python -m soak tables`, a process of its own: one answer after the other, each into a file.

An answer is the topic as `client.table` gives it, and what a checkpoint consumer reads next from the cut at which it
ends. Whoever runs it judges them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import anabranch
from anabranch import blocking

FOLLOWED_S = 0.3


Numbers = npt.NDArray[np.int64]


def numbers(column: Any) -> Numbers:
    found = pa.chunked_array([column]) if isinstance(column, pa.Array) else column
    made: Numbers = found.cast(pa.string()).cast(pa.int64()).to_numpy()
    return made


def main(url: str, topic: str, folder: Path) -> None:
    count = 0
    with blocking.connect(url) as client:
        while True:
            began = time.monotonic()
            try:
                rows = client.table(topic)
                answer = numbers(rows.to_arrow(columns=["value"]).column("value"))
                ended = time.monotonic()
                next_ones = followed(client, topic, rows.cut)
            except (anabranch.AnabranchError, OSError) as error:
                # A file that was merged away, or a broker that is not there: the next answer comes.
                print(f"no answer: {type(error).__name__}: {error}", flush=True)
                time.sleep(0.2)
                continue
            told = {
                "began": began,
                "ended": ended,
                "version": rows.version,
                "files": len(rows.files),
                "tail": len(rows.tail),
            }
            name = folder / f"{os.getpid()}-{count:06}"
            np.savez(name.with_suffix(".draft.npz"), answer=answer, followed=next_ones)
            name.with_suffix(".draft.npz").rename(name.with_suffix(".npz"))
            name.with_suffix(".draft").write_text(json.dumps(told))
            name.with_suffix(".draft").rename(name.with_suffix(".json"))
            count += 1


def followed(client: blocking.Client, topic: str, cut: bytes) -> Numbers:
    found = [np.zeros(0, np.int64)]
    with client.checkpoint_consumer(topic, start=cut) as consumer:
        until = time.monotonic() + FOLLOWED_S
        while (left := until - time.monotonic()) > 0:
            try:
                found.append(numbers(consumer.receive_arrow(timeout_s=left).column("value")))
            except anabranch.TimedOut:
                break
    return np.concatenate(found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
