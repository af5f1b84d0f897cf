"""The process that compacts: receives entries, returns what is left of them, one request and one response at a time.

A separate process, because the table of keys and the unpacking of batches would take the broker's memory and block its
event loop. It knows nothing of topics or files: the broker reads the entries and writes the result.

Requests and responses are msgpack behind a length of four bytes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import msgspec

from anabranch.broker.compaction.survey import Compactor
from anabranch.errors import AnabranchError
from anabranch.wire.frames import Buffer

# The worker must find this very package, however the broker itself found it.
_PATH: Final = os.pathsep.join(
    filter(None, (str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH")))
)
_AS_IT_IS: Final = True
_KEEP_KEYLESS: Final = "--keep-keyless"
_LARGE: Final = "--large"
# The kernels take a second to load; Python has processed this much by then.
_LARGE_BYTES: Final = 16 << 20

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class CompactionError(AnabranchError):
    """Compaction has failed; the message has the reason, and the previous result stays."""


class Worker:
    """The broker's end. The methods of `survey.Compactor` as coroutines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @staticmethod
    async def start(*, keeps_keyless: bool, bytes_expected: int) -> Worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "anabranch.broker.compaction.worker",
            *([_KEEP_KEYLESS] if keeps_keyless else []),
            *([_LARGE] if bytes_expected >= _LARGE_BYTES else []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": _PATH},
        )
        return Worker(process)

    async def survey(self, entries: Sequence[Buffer]) -> None:
        await self._ask("survey", entries)

    async def end_pass(self) -> bool:
        return bool(await self._ask("end_pass"))

    async def compact(self, entries: Sequence[Buffer]) -> list[Buffer | None]:
        answers = await self._ask("compact", entries)
        return [
            entry if answer is _AS_IT_IS else answer for entry, answer in zip(entries, answers, strict=True)
        ]

    async def finish(self) -> int:
        """Ends the compaction; returns the number of removed messages."""
        return int(await self._ask("finish"))

    async def _ask(self, what: str, entries: Sequence[Buffer] = ()) -> Any:
        question = _encode((what, entries))
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.writelines((len(question).to_bytes(4, "big"), question))
            await stdin.drain()
            error, answer = _decode(
                await stdout.readexactly(int.from_bytes(await stdout.readexactly(4), "big"))
            )
        except (OSError, EOFError) as error:
            raise CompactionError("the compacting process has ended before its work was done") from error
        if error is not None:
            raise CompactionError(error)
        return answer

    async def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class Compacts(Protocol):
    """The methods of `survey.Compactor`."""

    removed: int

    def survey(self, entries: Sequence[Buffer]) -> None: ...

    def end_pass(self) -> bool: ...

    def compact(self, entries: Sequence[Buffer]) -> list[Buffer | None]: ...

    def finish(self) -> None: ...


def new_compactor(*, keeps_keyless: bool, is_large: bool) -> Compacts:
    """The fast compactor for large topics, if its libraries are installed; else the plain one."""
    secret = secrets.token_bytes(32)
    if not is_large:
        return Compactor(secret=secret, keeps_keyless=keeps_keyless)
    try:
        from anabranch.broker.compaction.fast_survey import FastCompactor
    except ImportError:
        return Compactor(secret=secret, keeps_keyless=keeps_keyless)
    return FastCompactor(secret=secret, keeps_keyless=keeps_keyless)


def answer(compactor: Compacts, what: str, entries: Sequence[bytes]) -> Any:
    if what == "survey":
        return compactor.survey(entries)
    if what == "end_pass":
        return compactor.end_pass()
    if what == "compact":
        left = compactor.compact(entries)
        return [_AS_IT_IS if new is old else new for new, old in zip(left, entries, strict=True)]
    assert what == "finish"
    compactor.finish()
    return compactor.removed


def serve(compactor: Compacts, questions: BinaryIO, answers: BinaryIO) -> None:
    """Answers requests until they end."""
    while len(head := questions.read(4)) == 4:
        what, entries = _decode(questions.read(int.from_bytes(head, "big")))
        try:
            said = _encode((None, answer(compactor, what, entries)))
        except AnabranchError as error:
            said = _encode((str(error), None))
        answers.write(len(said).to_bytes(4, "big") + said)
        answers.flush()


def main() -> None:
    is_large = _LARGE in sys.argv[1:]
    if is_large:
        # All other processes on this machine are more urgent.
        os.nice(10)
    compactor = new_compactor(keeps_keyless=_KEEP_KEYLESS in sys.argv[1:], is_large=is_large)
    try:
        serve(compactor, sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        # The broker is gone. At once, since the interpreter would try to write the rest as it ends.
        os._exit(0)


if __name__ == "__main__":
    main()
