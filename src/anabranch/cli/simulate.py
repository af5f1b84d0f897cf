"""`anabranch simulate`: runs whole clusters on seeds, in virtual time, and says what came of it."""

from __future__ import annotations

import argparse
import time

from anabranch.simulation.core_play import play
from anabranch.simulation.core_world import Broken
from anabranch.simulation.run import run as run_cluster


def run(arguments: argparse.Namespace) -> int:
    """0 if every run went well. A run that did not prints its seed, what was wrong, and how it came to that."""
    started, failed = time.perf_counter(), 0
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    for seed in seeds:
        is_good, text = _core(seed) if arguments.core else _cluster(seed, arguments)
        failed += not is_good
        if not is_good or not arguments.quiet:
            print(text, flush=True)
    seconds = time.perf_counter() - started
    print(f"{len(seeds)} runs, {failed} failed, {len(seeds) / seconds:.1f} runs a second")
    if failed:
        print("a seed tells its story again: anabranch simulate --seed N --trace")
    return 1 if failed else 0


def _cluster(seed: int, arguments: argparse.Namespace) -> tuple[bool, str]:
    report = run_cluster(seed, brokers=arguments.brokers, is_traced=arguments.trace)
    trace = "".join(f"\n{line}" for line in report.trace) if arguments.trace else ""
    return report.is_good, f"{report}{trace}"


def _core(seed: int) -> tuple[bool, str]:
    try:
        world = play(seed)
    except Broken as error:
        return False, str(error)
    return True, f"seed {seed}: {len(world.trace)} events, {world.generations} topics"
