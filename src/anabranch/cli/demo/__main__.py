"""`python -m anabranch.cli.demo FOLDER LIFELINE OPTIONS` is the demo's own process; `anabranch demo` starts it.

Once no process holds the other end of the lifeline, the supervisor is gone, and the demo ends itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path

from anabranch.cli.demo import tell
from anabranch.cli.demo.supervised import STAYS, end_session, remove
from anabranch.cli.main import told


def main(folder: Path, lifeline: int, options: str) -> int:
    threading.Thread(target=_end_with, args=(folder, lifeline), daemon=True).start()

    def stays(code: int) -> None:
        (folder / STAYS).write_text(str(code))

    return told(lambda: tell(argparse.Namespace(**json.loads(options)), stays))


def _end_with(folder: Path, lifeline: int) -> None:
    os.read(lifeline, 1)
    own = os.getpid()
    end_session(own, but=own)
    if not (folder / STAYS).exists():
        remove(folder)
    os.kill(own, signal.SIGKILL)


sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
