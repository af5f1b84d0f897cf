"""What a bundle's state means for those who want its topics: clients, its owner, the broker that it goes to."""

from __future__ import annotations

import pytest

from anabranch.balance.core.serving import goes_to, is_free, is_living, is_receiving, may_serve, server_of
from anabranch.balance.core.states import BrokerRun, BundleAction, BundleChange, BundleFlow, BundleState
from anabranch.model.bundles import BundleName

A, B, C = (BrokerRun(f"{name}:6650", f"run of {name}") for name in "abc")
LIVING = {run.broker: run.run for run in (A, B, C)}
BUNDLE = BundleName.parse("acme/sales/0x00000000_0x80000000")


def state(of: BundleState, *, source: BrokerRun | None = None, to: BrokerRun | None = None) -> BundleChange:
    return BundleChange(BUNDLE, BundleFlow.TRANSFER, BundleAction.OWN, of, 1, A, source, to)


@pytest.mark.parametrize("of", [BundleState.ASSIGNED, BundleState.SPLITTING])
def test_the_broker_that_has_the_bundle_serves_it_also_while_it_is_split(of: BundleState) -> None:
    now = state(of, to=B)
    assert server_of(now, LIVING) == B
    assert goes_to(now) == B
    assert may_serve(now, B)
    assert not may_serve(now, A)
    assert not is_receiving(now, B)
    assert not is_free(now)


@pytest.mark.parametrize(
    "living", [{A.broker: A.run}, {A.broker: A.run, B.broker: "a later run"}], ids=["gone", "started again"]
)
def test_a_broker_that_is_gone_serves_nothing_and_no_other_broker_may(living: dict[str, str]) -> None:
    now = state(BundleState.ASSIGNED, to=B)
    assert server_of(now, living) is None
    assert not is_living(B, living)
    assert not may_serve(now, A)
    assert not may_serve(now, BrokerRun(B.broker, "a later run"))
    assert not is_free(now)


def test_during_a_transfer_clients_wait_and_the_destination_may_open_what_the_source_may_not() -> None:
    now = state(BundleState.ASSIGNING, source=A, to=B)
    assert server_of(now, LIVING) is None
    assert goes_to(now) == B
    assert may_serve(now, B)
    assert is_receiving(now, B)
    assert not may_serve(now, A)
    assert not is_receiving(now, A)
    assert not may_serve(now, C)


def test_an_assignment_without_a_source_is_no_transfer() -> None:
    now = state(BundleState.ASSIGNING, to=B)
    assert server_of(now, LIVING) is None
    assert may_serve(now, B)
    assert not is_receiving(now, B)
    assert not is_receiving(state(BundleState.ASSIGNING, source=B, to=B), B)


def test_a_bundle_that_is_unloaded_goes_to_no_broker_and_is_free_once_it_is_closed() -> None:
    closing = state(BundleState.ASSIGNING, source=A)
    assert goes_to(closing) is None
    assert not may_serve(closing, A)
    assert not is_free(closing)
    assert is_free(state(BundleState.FREED))
    assert is_free(None)
    assert not is_free(state(BundleState.DELETED))
    assert server_of(None, LIVING) is None
    assert not may_serve(None, A)
    assert goes_to(None) is None
