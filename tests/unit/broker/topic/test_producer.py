"""Who may publish beside whom."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from anabranch.broker.config.listeners import Addresses
from anabranch.broker.topic.producer import Admission, AdmissionVerdict, AttachedProducer
from anabranch.storage.port import Buffer
from anabranch.wire import pulsar_pb2 as pb


class Link:
    """A connection that is open and takes everything."""

    is_open = True
    address = "here"
    client_version = "test"

    def write(self, pieces: Sequence[Buffer]) -> None: ...

    def send(self, command: pb.BaseCommand) -> None: ...

    def awaits_producer(self, producer: AttachedProducer) -> bool:
        return True

    def attach_producer(self, producer: AttachedProducer) -> None: ...

    def producer_closed(self, producer: AttachedProducer, moved_to: Addresses | None = None) -> None: ...

    async def is_alive(self) -> bool:
        return True

    def hold(self, seconds: float) -> None: ...

    def owes(self, count: int) -> None: ...

    def answered(self, count: int) -> None: ...


LINK = Link()


def producer(mode: int, *, claimed: int | None = None, epoch: int = 0, link: Link = LINK) -> AttachedProducer:
    return AttachedProducer(1, "p", link, epoch=epoch, access_mode=mode, claimed_epoch=claimed)


SHARED = producer(pb.Shared)


@pytest.mark.parametrize(
    ("mode", "others", "held", "verdict"),
    [
        (pb.Shared, [], False, AdmissionVerdict.ADMIT),
        (pb.Shared, [SHARED], False, AdmissionVerdict.ADMIT),
        (pb.Shared, [], True, AdmissionVerdict.BUSY),
        (pb.Exclusive, [], False, AdmissionVerdict.ADMIT),
        (pb.Exclusive, [SHARED], False, AdmissionVerdict.FENCED),
        (pb.Exclusive, [], True, AdmissionVerdict.FENCED),
        (pb.WaitForExclusive, [], False, AdmissionVerdict.ADMIT),
        (pb.WaitForExclusive, [SHARED], False, AdmissionVerdict.WAIT),
        (pb.WaitForExclusive, [], True, AdmissionVerdict.WAIT),
        (pb.ExclusiveWithFencing, [SHARED], True, AdmissionVerdict.FENCE_OTHERS),
        (pb.ExclusiveWithFencing, [], False, AdmissionVerdict.FENCE_OTHERS),
    ],
)
def test_access_modes(
    mode: int, others: list[AttachedProducer], held: bool, verdict: AdmissionVerdict
) -> None:
    admission = Admission()
    if held:
        admission.hold(producer(pb.Exclusive))
    assert admission.judge(producer(mode), others) is verdict


def test_a_shared_producer_waits_its_turn_behind_one_that_waits_for_the_topic() -> None:
    admission = Admission()
    admission.waiting.append(producer(pb.WaitForExclusive))
    assert admission.judge(producer(pb.Shared), []) is AdmissionVerdict.BUSY


def test_the_epoch_rises_with_each_new_holder() -> None:
    admission = Admission()
    first, second = producer(pb.Exclusive), producer(pb.Exclusive)
    assert admission.hold(first) == 0
    admission.release(first)
    assert admission.hold(second) == 1


def test_a_holder_that_comes_back_keeps_its_epoch() -> None:
    admission = Admission()
    first = producer(pb.Exclusive)
    epoch = admission.hold(first)
    admission.release(first)
    again = producer(pb.Exclusive, claimed=epoch)
    assert admission.judge(again, []) is AdmissionVerdict.ADMIT
    assert admission.hold(again) == epoch


def test_a_holder_that_was_replaced_meanwhile_is_fenced() -> None:
    admission = Admission()
    first = producer(pb.Exclusive)
    epoch = admission.hold(first)
    admission.release(first)
    second = producer(pb.Exclusive)
    admission.hold(second)
    admission.release(second)
    assert admission.judge(producer(pb.Exclusive, claimed=epoch), []) is AdmissionVerdict.FENCED


def test_a_producer_replaces_its_own_earlier_self_only() -> None:
    old = producer(pb.Shared)
    assert producer(pb.Shared, epoch=1).replaces(old)
    assert not producer(pb.Shared, epoch=0).replaces(old)
    assert not producer(pb.Shared, epoch=1, link=Link()).replaces(old)


@pytest.mark.parametrize("claimed", [1, 7, 2**63, 2**64 - 1])
def test_an_epoch_that_the_topic_never_gave_is_the_claim_of_a_stranger(claimed: int) -> None:
    admission = Admission(0)
    stranger = producer(pb.Exclusive, claimed=claimed)
    assert admission.judge(stranger, []) is AdmissionVerdict.ADMIT
    assert admission.hold(stranger) == 1
    assert admission.judge(producer(pb.Exclusive, claimed=claimed), [stranger]) is AdmissionVerdict.FENCED
    new = Admission()
    assert new.hold(stranger) == 0


def test_an_epoch_never_leaves_what_the_protocol_can_say() -> None:
    admission = Admission(2**64 - 1)
    assert admission.hold(producer(pb.Exclusive)) == 2**63 - 1
    assert admission.hold(producer(pb.Exclusive)) == 2**63 - 1


def test_who_is_refused_hears_who_stands_in_the_way() -> None:
    admission = Admission(4)
    assert admission.why_not(producer(pb.Exclusive)) == "has existing shared producers"
    admission.waiting.append(producer(pb.WaitForExclusive))
    assert "waits to have it to itself: p" in admission.why_not(SHARED)
    admission.hold(producer(pb.Exclusive))
    assert admission.why_not(SHARED) == "has an existing exclusive producer: p"
    assert "epoch has already moved to 5, the producer's is 4" in admission.why_not(
        producer(pb.Exclusive, claimed=4)
    )
