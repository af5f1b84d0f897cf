"""The admin REST of three brokers behind one port beside that of one broker: same requests, same answers.

A request comes to any of the three, so each of them answers for all, or names the one that does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import rest_compare
from harness.broker_process import BrokerProcess
from harness.cluster_process import ClusterProcess
from harness.rest_compare import Act, Answer, Side

pytestmark = pytest.mark.timeout(900)

REQUESTS = Path(__file__).parent / "rest_requests.txt"
SETTINGS = {
    "forceDeleteNamespaceAllowed": "true",
    "forceDeleteTenantAllowed": "true",
    # Several brokers have more by default.
    "defaultNumberOfNamespaceBundles": "4",
}
# Refusals that name the broker that was asked.
NAMED = ("/lookup/v2/topic/persistent/acme/ns/t?listenerName=odd",)
# A segment that is sealed at once may end before its load was ever measured, at the one or the other.
MEASURED = ".load is missing"


def test_requests_are_answered_as_by_one_broker(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "three")]
    for folder in folders:
        folder.mkdir()
    faults: list[str] = []
    with (
        BrokerProcess(folders[0], SETTINGS, brokers=1) as one,
        ClusterProcess(folders[1], SETTINGS, brokers=3) as three,
    ):
        known = three.get("brokers")[0]
        sides = [Side(one.url, one.http_port), Side(three.url, three.http_port, known, is_following=True)]
        try:
            for step in rest_compare.read(REQUESTS):
                if isinstance(step, Act):
                    for side in sides:
                        side.act(step)
                    continue
                theirs, ours = (side.ask(step) for side in sides)
                if found := _differences(theirs, ours, is_loose=step.is_loose, is_named=step.path in NAMED):
                    faults.append(f"{step}: {'; '.join(found)}")
        finally:
            for side in sides:
                side.close()
    assert not faults, "\n" + "\n".join(faults)


def _differences(one: Answer, three: Answer, *, is_loose: bool, is_named: bool) -> list[str]:
    if one.status != three.status:
        return [f"{three.status} {three.body[:200]!r}, not {one.status} {one.body[:200]!r}"]
    if one.status >= 400 and one.value != three.value and not is_named:
        return [f"{three.body[:200]!r}, not {one.body[:200]!r}"]
    found = rest_compare.differences(one, three, is_loose=is_loose)
    return [text for text in found if not text.endswith(MEASURED)]
