"""The longest times without a receipt, from times alone."""

from __future__ import annotations

from pathlib import Path

from soak.gaps import FaultMoment, Gap, gaps_around, receipt_times, table
from soak.history import Writer
from soak.workload import ProducerPlan, Topic, Workload


def test_a_gap_counts_for_the_first_fault_within_it() -> None:
    times = {"slow": [0, 90, 1000, 1010], "other": [50, 100, 150, 1005, 1020]}
    faults = [FaultMoment("kill", 95), FaultMoment("move", 1004)]
    assert list(gaps_around(times, faults, 1020)) == [
        (faults[0], [Gap(50, "other"), Gap(910, "slow")]),
        (faults[1], [Gap(855, "other"), Gap(10, "slow")]),
    ]


def test_a_topic_that_gets_no_receipt_any_more_waited_until_the_end() -> None:
    assert list(gaps_around({"lost": [0, 10]}, [FaultMoment("kill", 11)], 5000)) == [
        (FaultMoment("kill", 11), [Gap(4990, "lost")])
    ]


def test_each_kind_of_fault_has_a_line_that_names_the_slowest_topic() -> None:
    faults = [FaultMoment("kill", 95), FaultMoment("kill", 500), FaultMoment("move", 1004)]
    lines = list(table({"slow": [0, 90, 1000, 1010], "other": [0, 100, 1005]}, faults, 1010))
    assert len(lines) == 3
    assert lines[1].split()[:2] == ["kill", "2"]
    assert lines[1].endswith("910 ms (slow)")


def test_receipts_are_read_by_topic_and_partition(tmp_path: Path) -> None:
    plain, parts = Topic("public/a/plain"), Topic("public/a/parts", partitions=2)
    workload = Workload((ProducerPlan("one", plain), ProducerPlan("two", parts)), (), ())
    for name, partition in (("one", -1), ("two", 1)):
        history = Writer(tmp_path / f"producer-{name}.log")
        history.note("s", name, 0)
        history.note("r", name, 0, partition, 1, 0, -1, 200)
        history.note("r", name, 1, partition, 1, 1, -1, 100)
        history.close()
    assert receipt_times(workload, tmp_path) == {
        "public/a/plain": [100, 200],
        "public/a/parts-partition-1": [100, 200],
    }
