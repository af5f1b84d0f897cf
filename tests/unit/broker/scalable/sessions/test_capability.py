"""Which clients can share a segment by entry buckets, by what they call themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.scalable.sessions.capability import can_share


@pytest.mark.parametrize(
    "version",
    [
        "Pulsar-Java-v5.0.0-M1-SNAPSHOT",
        "Pulsar-Java-v5.0.0-M1-SNAPSHOT-billing",
        "Pulsar-Java-v5.0.0-M2",
        "Pulsar-Java-v5.0.0-M2-SNAPSHOT",
        "Pulsar-Java-v5.0.0-M10-billing",
        "Pulsar-Java-v5.0.0-SNAPSHOT",
        "Pulsar-Java-v5.0.0",
        "Pulsar-Java-v5.0.0.3",
        "Pulsar-Java-v5.0.0-billing",
        "Pulsar-Java-v5.0.1",
        "Pulsar-Java-v5.1.0-SNAPSHOT",
        "Pulsar-Java-v5.1.0-M1",
        "Pulsar-Java-v10.0.0",
    ],
)
def test_java_clients_after_the_first_milestone_of_release_5_can(version: str) -> None:
    assert can_share(version)


@pytest.mark.parametrize(
    "version",
    [
        "Pulsar-Java-v5.0.0-M1",
        "Pulsar-Java-v5.0.0-M1-billing",
        "Pulsar-Java-v5.0.0-M1-it-is-no-SNAPSHOT",
        "Pulsar-Java-v5.0.0-M0-SNAPSHOT",
        "Pulsar-Java-v4.1.2",
        "Pulsar-Java-v4.2.0-M1-SNAPSHOT",
        "Pulsar-Java-v5",
        "Pulsar-Java-v",
        "Pulsar-CPP-v5.1.0",
        "pulsar-java-v5.1.0",
        "Anabranch-1.0",
        "",
    ],
)
def test_others_cannot_as_far_as_is_known(version: str) -> None:
    assert not can_share(version)


@given(st.one_of(st.text(), st.text().map(lambda rest: f"Pulsar-Java-v5.0.0{rest}")))
def test_any_text_has_an_answer(version: str) -> None:
    assert can_share(version) in (True, False)
