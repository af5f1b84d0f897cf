"""The start of the `anabranch` command: before any large import, Ctrl-C is set to end it silently.

Python answers Ctrl-C with a traceback anywhere, in the middle of an import too. While the command is being imported,
and once it has ended, Ctrl-C ends the process as it ends a program without a handler.
"""

from __future__ import annotations

import signal


def main() -> int:
    # If the parent process set the signal to be ignored, it stays ignored.
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def answer(handler: signal.Handlers | object) -> None:
        if is_ours:
            signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]

    answer(signal.SIG_DFL)
    from anabranch.cli.main import main as command

    try:
        return command(ready=lambda: answer(signal.default_int_handler))
    except KeyboardInterrupt:
        return 130
    finally:
        answer(signal.SIG_DFL)
