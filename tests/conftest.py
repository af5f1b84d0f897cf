"""Settings of all tests."""

import gc
import os
import unittest

import pytest
from hypothesis import HealthCheck, settings

from harness.zookeeper import missing

# The same examples every time, so that a change is judged by what it changes; ANABRANCH_CHANCE=1 looks for new ones. A
# busy machine is no fault of the code: no test fails for being slow.
settings.register_profile(
    "anabranch",
    derandomize=not os.environ.get("ANABRANCH_CHANCE"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("anabranch")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before a state machine: what other tests left behind is collected now.

    Hypothesis parses the machine's source. What the collector finds meanwhile may print a traceback, which parses as
    well, and Python before 3.11.8 cannot do one within the other (gh-106905)."""
    if isinstance(item, pytest.Function) and isinstance(item.instance, unittest.TestCase):
        gc.collect()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests on real ZooKeeper servers run where they are asked for, and then they must be able to. Those on a real
    object store run where there is one."""
    if not os.environ.get("TEST_S3_ENDPOINT"):
        left_out = [item for item in items if item.get_closest_marker("objects")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("objects")]
    if "zookeeper" not in config.getoption("-m"):
        left_out = [item for item in items if item.get_closest_marker("zookeeper")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("zookeeper")]
    elif (why := missing()) is not None:
        raise pytest.UsageError(why)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of a file: what the file left open is charged to it, not to whoever runs later."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
