"""`/admin/v2/anabranch/writes` and `…/reveal`: who won a batch of a hidden write, and that its readers see it now.

Any broker answers for the record, which is in the shared store; the topic's owner does the revealing, and others send
the caller there. A record belongs to those who may produce to all topics that it is about: nobody else reads or changes
it, whatever topics they name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from starlette.exceptions import HTTPException

from anabranch.broker.admin.errors import RestError, redirect
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.params import BrokerDep, NamespaceDep, RoleDep, body, decoded_once
from anabranch.broker.admin.partitions import single
from anabranch.broker.broker import Broker
from anabranch.broker.hidden_writes import OpenWrite
from anabranch.broker.owed import is_other_topic
from anabranch.broker.topic import Topic
from anabranch.broker.write_records import Check, encode_record
from anabranch.model.hidden_writes import (
    WRITE_CHARS_MAX,
    Claim,
    DroppedWinner,
    InvalidWrite,
    WriteBatch,
    WriteRecord,
    checked_attempt,
)
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import scalable_name
from anabranch.storage.port import LogError

router = APIRouter()

_LOGGED = (Domain.PERSISTENT, Domain.SEGMENT)
# Some 200,000 attempts: of tasks that write 128 MB each, 25 TB.
ATTEMPTS_BYTES_MAX = 8 << 20
# Whoever wants to drop more decides that nothing has won.
DROPPED_MAX = 100_000
# Checked on the loop: more of them take long.
FEW = 1_000


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=WRITE_CHARS_MAX)]


class Claimed(msgspec.Struct, forbid_unknown_fields=True):
    run: _Name
    by: _Name


class Decided(msgspec.Struct, forbid_unknown_fields=True):
    topics: list[str]
    # None: only to claim what somebody has decided.
    winners: list[str] | None = None
    # What is written to, as its users call it: asked about where nothing was written anywhere.
    target: str = ""
    # What the winners have written, for whoever runs the write again.
    rows: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    digest: Annotated[str, msgspec.Meta(max_length=WRITE_CHARS_MAX)] = ""
    claim: Claimed | None = None


class Dropped(msgspec.Struct, forbid_unknown_fields=True):
    attempts: list[str]
    target: str = ""


async def _in_path(write: str, number: str) -> WriteBatch:
    return _batch(decoded_once(write), number)


async def _in_query(write: str = "", batch: str = "") -> WriteBatch:
    return _batch(write, batch)


def _batch(write: str, batch: str) -> WriteBatch:
    try:
        return WriteBatch.checked(write, batch)
    except InvalidWrite as error:
        raise RestError(412, str(error)) from None


async def _attempts(given: list[str]) -> list[str]:
    def checked() -> list[str]:
        return [checked_attempt(attempt) for attempt in given]

    try:
        return checked() if len(given) <= FEW else await asyncio.to_thread(checked)
    except InvalidWrite as error:
        raise RestError(412, str(error)) from None


BatchDep = Annotated[WriteBatch, Depends(_in_path)]


@router.get("/writes")
@needs(Needs.ROUTE)
async def open_writes(broker: BrokerDep, role: RoleDep) -> list[dict[str, Any]]:
    """The batches that are not decided, by topic, of the topics that this broker has open and the role may produce to.

    Those that hold readers come first, the longest of all before the others."""
    found: list[tuple[str, OpenWrite]] = []
    for topic in list(broker.loaded().values()):
        if topic.hidden.has_attempts and await broker.rights.may_produce(role, topic.name):
            found += [(str(topic.name), one) for one in topic.hidden.open_writes()]
    found.sort(key=lambda one: (-one[1].held_s, one[0], one[1].batch))
    return [
        {
            "topic": topic,
            "write": one.batch.write,
            "batch": one.batch.batch,
            "attempts": list(one.attempts),
            "entries": one.entries,
            "producers": one.producers,
            "heldSeconds": one.held_s,
        }
        for topic, one in found
    ]


@router.get("/writes/{write}/{number}")
@needs(Needs.ROUTE)
async def get_record(broker: BrokerDep, role: RoleDep, batch: BatchDep) -> Response:
    record = await broker.write_records.get(batch)
    if record is None:
        raise RestError(404, f"Nothing is known of {batch}")
    await _may_change(broker, role, ())(record)
    return _answer(record)


@router.put("/writes/{write}/{number}")
@needs(Needs.ROUTE)
async def decide(broker: BrokerDep, role: RoleDep, batch: BatchDep, request: Request) -> Response:
    """Stores the winners unless there are some: then those are answered, and the caller goes on with them."""
    given = await body(request, Decided, bytes_max=ATTEMPTS_BYTES_MAX)
    claim = None if given.claim is None else Claim(given.claim.run, given.claim.by)
    if given.winners is None:
        found = await broker.write_records.claim(batch, claim, check=_may_change(broker, role, ()))
        if found is None:
            raise RestError(404, f"Nothing is known of {batch}")
        return _answer(found)
    winners = await _attempts(given.winners)
    topics = [TopicName.parse(topic) for topic in given.topics]
    for topic in topics:
        if topic.domain not in _LOGGED:
            raise RestError(
                412, f"{topic} has no log of its own: name segments, partitions or persistent topics"
            )
    about = topics or _target(given.target)
    for topic in about:
        await broker.rights.produce(role, topic)
    # A thousand segments are one topic to whoever asks for a right.
    about = [scalable_name(topic) if topic.domain is Domain.SEGMENT else topic for topic in about]
    check = _may_change(broker, role, about)
    try:
        record = await broker.write_records.decide(
            batch,
            winners,
            map(str, topics),
            rows=given.rows,
            digest=given.digest,
            claim=claim,
            about=about,
            check=check,
        )
    except DroppedWinner as error:
        raise RestError(409, str(error)) from None
    return _answer(record)


@router.post("/writes/{write}/{number}/drop")
@needs(Needs.ROUTE)
async def drop(broker: BrokerDep, role: RoleDep, batch: BatchDep, request: Request) -> Response:
    """Those attempts will not win."""
    given = await body(request, Dropped, bytes_max=ATTEMPTS_BYTES_MAX)
    about = _target(given.target)
    for topic in about:
        await broker.rights.produce(role, topic)
    may_change = _may_change(broker, role, about)
    attempts = await _attempts(given.attempts)

    async def check(record: WriteRecord) -> None:
        await may_change(record)
        if not record.is_decided and len(record.dropped) + len(attempts) > DROPPED_MAX:
            raise RestError(
                412,
                f"{DROPPED_MAX} attempts at {batch} are dropped at most: decide that nothing has won instead",
            )

    return _answer(await broker.write_records.drop(batch, attempts, about=about, check=check))


@router.post("/reveal/{domain}/{tenant}/{namespace}/{topic:path}")
@needs(Needs.ROUTE)
async def reveal(
    request: Request,
    broker: BrokerDep,
    role: RoleDep,
    domain: Domain,
    namespace: NamespaceDep,
    topic: str,
    batch: Annotated[WriteBatch, Depends(_in_query)],
    topicId: str = "",
) -> Response:
    """Answered once the winners' entries in that topic are visible, and the others' dropped, for good.

    410 if `topicId` is the id of another topic of that name: what was written to that one is gone with it."""
    if domain not in _LOGGED:
        raise RestError(412, f"{domain.value}:// has no log of its own: name a persistent topic or a segment")
    name = TopicName.parse(f"{domain.value}://{namespace}/{decoded_once(topic)}")
    await broker.rights.produce(role, name)
    if not broker.owners.is_mine(name):
        answer = redirect(request, broker.owners.owner(name).http_url)
        raise HTTPException(307, "Ask the topic's owner", {"Location": answer.headers["location"]})
    try:
        await (await _revealed_by(broker, name, topicId)).hidden.reveal(batch)
    except LogError as error:
        # Taken by another broker, or lost with its disk: whoever has it next can do it.
        raise RestError(503, f"{name}: {error}; ask again") from None
    return Response(status_code=204)


async def _revealed_by(broker: Broker, name: TopicName, topic_id: str) -> Topic:
    """404 for a segment that is collected, which happens only after it has shown what won; 410 if its topic is gone."""
    try:
        topic = await single(broker, name)
    except RestError:
        parent = scalable_name(name)
        record = await broker.records.get(parent) if name.domain is Domain.SEGMENT else None
        if name.domain is Domain.SEGMENT and (record is None or record.is_deleting):
            raise RestError(410, f"{parent} does not exist, and {name} is gone with it") from None
        if record is not None and topic_id not in ("", record.layout.topic_id):
            raise _made_again(name, topic_id) from None
        raise
    log = topic.log.topic_record
    if is_other_topic(log, topic_id) and topic_id != await broker.part_of(name, log):
        raise _made_again(name, topic_id)
    return topic


def _made_again(name: TopicName, topic_id: str) -> RestError:
    return RestError(410, f"{name} was deleted and made again: the topic with the id {topic_id} is gone")


def _may_change(broker: Broker, role: str, about: Sequence[TopicName]) -> Check:
    """For who may produce to all that the record is about, whatever the caller says it is.

    One that is about nothing yet will be about what the caller has named, and may produce to. Records are in the shared
    store: nobody makes one who may write nowhere."""

    async def check(record: WriteRecord) -> None:
        for topic in record.concerns:
            await broker.rights.produce(role, topic)
        if not record.concerns and not about:
            await broker.rights.super_user(role)

    return check


def _target(text: str) -> list[TopicName]:
    return [TopicName.parse(text)] if text else []


def _answer(record: WriteRecord) -> Response:
    return Response(encode_record(record), media_type="application/json")
