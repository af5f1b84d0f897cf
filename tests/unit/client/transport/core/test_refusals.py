"""The table of refusals: what each part of the client makes of a broker's error answer."""

from __future__ import annotations

import pytest

from anabranch.client.errors import RequestRefused, refusal
from anabranch.client.transport.core.refusals import TABLE, WORDS, Meaning, RefusedPart, first_kept, meaning
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import DATA_LOST, OTHER_TOPIC, OTHER_TYPE, UNKNOWN_POSITION, WRITE_DECIDED


def test_every_part_has_a_row() -> None:
    assert TABLE.keys() == set(RefusedPart)


@pytest.mark.parametrize("part", [part for part in RefusedPart if part is not RefusedPart.SEND])
@pytest.mark.parametrize("error", [pb.AuthenticationError, pb.AuthorizationError])
def test_who_is_not_allowed_does_not_ask_again(part: RefusedPart, error: int) -> None:
    assert meaning(RequestRefused(error, ""), part) is Meaning.FINAL


@pytest.mark.parametrize("part", [part for part in RefusedPart if part is not RefusedPart.NAMESPACE_WATCH])
@pytest.mark.parametrize("error", [pb.ServiceNotReady, pb.MetadataError, pb.TooManyRequests, pb.ConsumerBusy])
def test_a_broker_that_is_not_ready_is_asked_again(part: RefusedPart, error: int) -> None:
    assert meaning(RequestRefused(error, ""), part) is Meaning.RETRY


@pytest.mark.parametrize(
    ("part", "meant"),
    [
        (RefusedPart.LAYOUT_WATCH, Meaning.FINAL),
        (RefusedPart.CONTROLLER_SESSION, Meaning.FINAL),
        (RefusedPart.PRODUCER, Meaning.FINAL),
        (RefusedPart.SEND, Meaning.MESSAGE),
        (RefusedPart.NEW_SUBSCRIPTION, Meaning.FINAL),
        (RefusedPart.CONSUMER, Meaning.RETRY),
    ],
)
def test_one_number_means_different_things_to_different_parts(part: RefusedPart, meant: Meaning) -> None:
    assert meaning(RequestRefused(pb.NotAllowedError, "too many"), part) is meant


@pytest.mark.parametrize("word", WORDS)
def test_a_word_of_ours_decides_where_the_number_does_not(word: str) -> None:
    assert meaning(refusal(pb.NotAllowedError, f"{word} 3:4: …"), RefusedPart.CONSUMER) is WORDS[word]


@pytest.mark.parametrize("word", [OTHER_TYPE, OTHER_TOPIC, DATA_LOST, UNKNOWN_POSITION])
def test_a_final_number_decides_whatever_the_text_quotes(word: str) -> None:
    refused = refusal(pb.AuthorizationError, f"no access to {word}")
    assert meaning(refused, RefusedPart.CONSUMER) is Meaning.FINAL


def test_a_write_that_is_decided_spoils_more_than_the_message() -> None:
    refused = refusal(pb.NotAllowedError, f"{WRITE_DECIDED}: w/0")
    assert meaning(refused, RefusedPart.SEND) is Meaning.FINAL


def test_the_first_entry_that_is_kept_is_read_from_the_answer() -> None:
    assert first_kept(refusal(pb.NotAllowedError, f"{DATA_LOST} 9:3: entries were deleted")) == (9, 3)
    assert first_kept(refusal(pb.NotAllowedError, f"{DATA_LOST} nowhere: entries were deleted")) is None
    assert first_kept(refusal(pb.ServiceNotReady, "9:3: soon")) is None
