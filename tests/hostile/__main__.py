"""`python -m hostile`: every case, in the order of a seed, for as long as it may take; then the verdict.

FUZZ_SECONDS=600 python -m hostile --seed 7
python -m hostile --only 'producing/SEND/num_messages=-1'
python -m hostile --brokers 3
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from hostile.attack import BROKER_BYTES_MAX, PUBLISH_P99_MS_MAX, Attack, BrokerLost
from hostile.cases import Case, drawn, every, parse
from hostile.rig import MIB, Rig

CASES_PER_ROUND = 1_500
ROUND_S = 150.0
# Bystanders alone, to know what this machine makes of a publish.
QUIET_S = 5.0


def planned(seed: int, pattern: str, without: str = "", *, brokers: int = 1) -> Iterator[Case]:
    """Every case once, then edges drawn together, without end."""
    cases = [
        case
        for case in every()
        if pattern in case.name
        and not (without and without in case.name)
        and (brokers > 1 or not case.state.needs_several)
    ]
    random.Random(seed).shuffle(cases)
    yield from cases
    if not pattern:
        more = (drawn(number) for number in count(seed * 1_000_000))
        yield from (
            case for case in more if not (without and any(without in edit.edge for edit in case.changes))
        )


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)] if values else 0.0


def sweep(attack: Attack, cases: Iterator[Case], end_s: float) -> None:
    while time.monotonic() < end_s:
        attack.begin_round()
        round_end_s = min(end_s, time.monotonic() + ROUND_S)
        is_over = False
        for number, case in enumerate(cases, 1):
            try:
                found = attack.run(case)
            except (BrokerLost, OSError, TimeoutError) as error:
                print(f"the broker is started again: {error}", flush=True)
                break
            if any(one.kind == "broker lost" for one in found):
                break
            if number >= CASES_PER_ROUND or time.monotonic() > round_end_s:
                break
        else:
            is_over = True
        attack.end_round()
        print(
            f"{attack.done:,} cases done, {len(attack.count())} kinds of failure, {attack.published:,} messages of "
            f"bystanders, p99 {p99(attack.latencies_ms):.1f} ms, memory at most {attack.peak_bytes // MIB} MiB",
            flush=True,
        )
        if is_over:
            return


def only(attack: Attack, names: list[str]) -> None:
    for name in names:
        attack.begin_round()
        attack.run(parse(name))
        attack.linger()
        attack.end_round()


def quiet_p99(rig: Rig) -> float:
    rig.invite()
    time.sleep(QUIET_S)  # What is measured is this time.
    told = rig.ask("report")
    rig.dismiss()
    return p99(told["latencies_ms"])


def verdict(attack: Attack, quiet_ms: float, *, is_whole: bool) -> int:
    """`is_whole`: all that was acknowledged to bystanders of all rounds is there at the end."""
    attacked_ms = p99(attack.latencies_ms)
    bound_ms = max(PUBLISH_P99_MS_MAX, 2 * quiet_ms)
    wall, cpu = attack.longest_turn_ms
    total = sum(1 for _ in every())
    print(f"\n{attack.done:,} cases; there are {total:,} with one edge each, and others without end")
    if attack.skipped:
        print(f"{attack.skipped:,} cases were left out because their like had stopped the broker before")
    print(
        f"bystanders: {attack.published:,} messages, publish p99 {attacked_ms:.1f} ms, {quiet_ms:.1f} ms without attack"
    )
    print(
        f"the loop's longest turn: {cpu} ms of processor time, {wall} ms in all"
        if cpu
        else f"the loop's longest turn: {attack.turn_ms:.0f} ms of processor time"
    )
    budget = BROKER_BYTES_MAX * attack.rig.brokers
    print(f"memory: {attack.peak_bytes // MIB} MiB at most, the budget is {budget // MIB} MiB")
    for text, times in attack.unconfirmed.most_common():
        print(f"not repeated by any single command: {text}, {times} times")
    if attacked_ms > bound_ms:
        print(f"FAILED publish p99 of bystanders: {attacked_ms:.1f} ms, the bound is {bound_ms:.1f} ms")
    for failure in attack.failures:
        print(f"FAILED {failure}")
    for (kind, place), times in attack.count().most_common():
        print(f"  {times:6} {kind}: {place}")
    is_good = is_whole and not attack.failures and attacked_ms <= bound_ms
    print("passed" if is_good else "failed")
    return 0 if is_good else 1


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m hostile", description=__doc__)
    options.add_argument("--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS", "1800")))
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", action="append", default=[], metavar="CASE", help="a case, by its name")
    options.add_argument("--matching", default="", metavar="TEXT", help="cases with this in their names")
    options.add_argument("--without", default="", metavar="TEXT", help="no cases with this in their names")
    options.add_argument("--brokers", type=int, help="how many brokers are attacked; BROKERS, or one")
    options.add_argument("--folder", type=Path, help="where the broker's data and log stay")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        with Rig(folder, given.brokers) as rig:
            quiet_ms = quiet_p99(rig)
            attack = Attack(rig, tell=lambda text: print(text, flush=True))
            if given.only:
                only(attack, given.only)
            else:
                sweep(
                    attack,
                    planned(given.seed, given.matching, given.without, brokers=rig.brokers),
                    time.monotonic() + given.seconds,
                )
            lost = list(rig.losses(latest_only=False))
            for loss in lost[:10]:
                print(f"FAILED at the end: {loss}")
            return verdict(attack, max(quiet_ms, quiet_p99(rig)), is_whole=not lost)


if __name__ == "__main__":
    sys.exit(main())
