"""`anabranch simulate`: runs whole clusters on seeds, in virtual time, and reports the outcome.

The simulator is part of the sources and not of the wheel (docs/decisions/0016-what-ships.md).
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from typing import TYPE_CHECKING

from anabranch.cli.parsing.options import UsageError

if TYPE_CHECKING:
    from anabranch.simulation.world.world import Report


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every run succeeded. For a failed run it prints the seed, the violations, and the events before
    them."""
    if importlib.util.find_spec("anabranch.simulation") is None:
        raise UsageError(
            "the simulator is not installed with the package: it is part of the sources. Clone the repository, and "
            "run `make setup` and `make sim` there"
        )
    started, failed = time.perf_counter(), 0
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    reports: list[Report] = []
    for seed in seeds:
        is_good, text = _core(seed) if arguments.core else _cluster(seed, arguments, reports)
        failed += not is_good
        if not is_good or not arguments.quiet:
            print(text, flush=True)
    seconds = time.perf_counter() - started
    print(f"{len(seeds)} runs, {failed} failed, {len(seeds) / seconds:.1f} runs a second")
    if reports:
        print(f"segments shared: {sum((one.sharing for one in reports[1:]), reports[0].sharing)}")
        print(f"checkpoint groups: {sum((one.groups for one in reports[1:]), reports[0].groups)}")
    if failed:
        print("replay a seed: anabranch simulate --seed N --trace")
    return 1 if failed else 0


def _cluster(seed: int, arguments: argparse.Namespace, reports: list[Report]) -> tuple[bool, str]:
    from anabranch.simulation.run import run as run_cluster

    report = run_cluster(seed, brokers=arguments.brokers, is_traced=arguments.trace)
    reports.append(report)
    trace = "".join(f"\n{line}" for line in report.trace) if arguments.trace else ""
    return report.is_good, f"{report}{trace}"


def _core(seed: int) -> tuple[bool, str]:
    from anabranch.simulation.core.play import play
    from anabranch.simulation.core.world import Broken

    try:
        world = play(seed)
    except Broken as error:
        return False, str(error)
    return True, f"seed {seed}: {len(world.trace)} events, {world.generations} topics"
