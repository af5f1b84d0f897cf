"""Read plans that threads decode side by side, in a process that has decoded none before."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading
from anabranch.storage.core import read_plan
sys.setswitchinterval(1e-6)
plan = read_plan.TopicPlan(
    topic="t", start=(0, 0), end=(0, 1), log_end=(0, 1), has_lost=False, root="/r", files=("a",),
    runs=(read_plan.PlannedRun(0, 0, 0, 0, 0, 10),), expires_in_ms=1, message_bytes_max=5,
)
data = read_plan.encode(plan)
together = threading.Barrier(8)
def decode():
    together.wait()
    assert read_plan.decode(data) == plan
threads = [threading.Thread(target=decode) for _ in range(8)]
for one in threads:
    one.start()
for one in threads:
    one.join()
"""


def test_the_first_plans_of_a_process_may_be_decoded_by_several_threads_at_once() -> None:
    for _ in range(3):
        subprocess.run([sys.executable, "-c", PROGRAM], check=True)
