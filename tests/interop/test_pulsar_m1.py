"""Our client against a real Pulsar 5.0.0-M1: its own tests, and its histories. Run by `make interop` only.

Needs the peers folder and a JDK of 21 or later.

What M1 cannot do is left out, test by test: `harness.m1_limits` has the list, docs/client/known-peer-limits.md says
what was seen.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from soak.client import run as soak
from soak.client.conductor import Pace
from soak.client.target import Target

from anabranch import blocking
from anabranch.cli.admin.rest import call
from anabranch.client import Routing
from harness import m1_limits, pulsar_peer
from harness.broker_process import until
from harness.pulsar_peer import PulsarPeer

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODULES = (
    "test_scalable_client",
    "test_checkpoints",
    "test_queue_consumer",
    "test_namespace_consumers",
    "test_large_messages",
    "test_our_producer",
    "test_client_schemas",
    "test_client_encryption",
)


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarPeer]:
    if (reason := pulsar_peer.missing()) is not None:
        pytest.skip(reason)
    with PulsarPeer(tmp_path_factory.mktemp("pulsar")) as peer:
        yield peer


@pytest.mark.parametrize("module", MODULES)
def test_the_tests_of_our_client_pass_less_what_m1_cannot_do(peer: PulsarPeer, module: str) -> None:
    environment = os.environ | {
        m1_limits.URL: peer.url,
        m1_limits.HTTP_PORT: str(peer.http_port),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "harness.against_m1", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, str(HERE / f"{module}.py")], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    print(ran.stdout[-6000:])
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]


def test_pulsar_splits_by_itself_for_a_consumer_that_joins(peer: PulsarPeer) -> None:
    """What the README says of it beside ours."""
    path = "scalable/public/default/joined"
    call(peer.admin, "PUT", f"/admin/v2/{path}?numInitialSegments=1")

    def active() -> int:
        found = call(peer.admin, "GET", f"/admin/v2/{path}")["segments"].values()
        return sum(one["state"] == "ACTIVE" for one in found)

    with blocking.connect(peer.url) as client:
        topic = "topic://public/default/joined"
        first = client.stream_consumer(topic, "team", consumer_name="first")
        assert active() == 1
        second = client.stream_consumer(topic, "team", consumer_name="second")
        until(lambda: active() == 2, within_s=30)
        first.close()
        second.close()


def test_every_limit_is_described_and_is_about_a_test_that_exists() -> None:
    described = (ROOT / "docs" / "client" / "known-peer-limits.md").read_text()
    for module, limits in m1_limits.LIMITS.items():
        text = (HERE / f"{module}.py").read_text()
        for test, limit in limits.items():
            assert f"def {test}(" in text
            assert f"## {limit}\n" in described, f"{limit!r} is no entry of the page"


@pytest.mark.parametrize(
    "kinds",
    [("queue", "namespace-queue"), ("stream", "namespace-stream"), ("checkpoint",)],
    ids=lambda kinds: kinds[0],
)
def test_consumers_keep_their_promises_through_splits_merges_and_lost_connections(
    peer: PulsarPeer, kinds: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = soak.Options(
        operations=int(os.environ.get("PULSAR_M1_OPERATIONS", "30")),
        seed=11,
        folder=tmp_path,
        kinds=kinds,
        target=Target(
            peer.url,
            peer.admin,
            peer.behind,
            grace_s=pulsar_peer.GRACE_S,
            message_bytes_max=pulsar_peer.MESSAGE_BYTES_MAX,
        ),
        routing=Routing.LOW,
        # Readers may be held up for longer than the usual minute.
        pace=Pace(fault_s=0.5, retention_min=10),
        per_second=60.0,
        # M1 looks ever more rarely whether a parent was read to its end, before it hands its children out.
        quiet_s=60.0,
        is_m1=True,
    )
    peer.make_way()
    try:
        assert soak.run(options) == 0, capsys.readouterr().out
    finally:
        peer.pass_through()
