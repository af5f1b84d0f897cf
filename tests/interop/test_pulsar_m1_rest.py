"""The admin REST beside that of a real Pulsar 5.0.0-M1: same requests, same answers. Run by `make interop` only.

Needs the peers folder and a JDK of 21 or later. Where ours differs on purpose, `rest_requests.txt` says why.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import pulsar_peer, rest_compare
from harness.broker_process import BrokerProcess
from harness.pulsar_peer import PulsarPeer
from harness.rest_compare import Act, Side

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

REQUESTS = Path(__file__).parent / "rest_requests.txt"
# As ours is by default.
SETTINGS = {
    "forceDeleteNamespaceAllowed": "true",
    "forceDeleteTenantAllowed": "true",
    "brokerDeduplicationEnabled": "false",
}


def test_requests_are_answered_as_pulsar_does(tmp_path: Path) -> None:
    if (reason := pulsar_peer.missing()) is not None:
        pytest.skip(reason)
    faults: list[str] = []
    ours = tmp_path / "ours"
    ours.mkdir()
    with (
        PulsarPeer(tmp_path, SETTINGS) as peer,
        # As many as Pulsar has by default; several brokers of ours would have more.
        BrokerProcess(ours, {"defaultNumberOfNamespaceBundles": "4"}) as broker,
    ):
        sides = [Side(peer.url, peer.http_port), Side(broker.url, broker.http_port)]
        try:
            for step in rest_compare.read(REQUESTS):
                if isinstance(step, Act):
                    for side in sides:
                        side.act(step)
                    continue
                theirs, mine = (side.ask(step) for side in sides)
                found = rest_compare.differences(theirs, mine, is_loose=step.is_loose)
                if step.ours is None and found:
                    faults.append(f"{step}: {'; '.join(found)}")
                elif step.ours is not None and (mine.status != step.ours or not found):
                    faults.append(
                        f"{step}: ours is {mine.status} and {found or 'no different'}; noted: {step.ours}"
                    )
        finally:
            for side in sides:
                side.close()
    assert not faults, "\n" + "\n".join(faults)
