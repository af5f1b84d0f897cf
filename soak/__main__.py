"""`python -m soak`: the fault runs that take minutes. `docs/faults.md` says what each of them shows."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from soak import kill


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, help="where data and histories go (default: a new temporary folder)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder even if all went well")
    commands = parser.add_subparsers(dest="command")
    killing = commands.add_parser("kill", help="kill -9 under a mixed load (the default)")
    for one in (parser, killing):
        one.add_argument("--rounds", type=int, default=50, help="how many times the broker is killed")
        one.add_argument("--seed", type=int, default=None, help="repeats the moments and choices of a run")
        one.add_argument("--seconds", type=float, default=4.0, help="the longest life between two kills")
    args = parser.parse_args()
    folder: Path = args.folder or Path(tempfile.mkdtemp(prefix="anabranch-soak-"))
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
    code = kill.run(kill.Options(args.rounds, seed, args.seconds, folder))
    if code == 0 and not args.keep and args.folder is None:
        shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
