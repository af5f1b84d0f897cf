"""`/admin/v2/anabranch/writes` and `…/reveal`: decides which attempts of a hidden write win, and reveals their entries.

Any broker answers for the record, which is in the shared store; the topic's owner reveals entries, and other brokers
redirect the caller there. A record is accessible only to roles that may produce to all its topics, whatever topics the
request names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from anabranch.broker.admin.across.all_brokers import from_others, same_request
from anabranch.broker.admin.http.answer import JSON, NO_CONTENT, HttpAnswer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.large import in_turns
from anabranch.broker.admin.http.names import decoded_once
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import From, Role
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.logged import LOGGED, PATH, LoggedTopic, check_owned
from anabranch.broker.admin.topics.partitions import single
from anabranch.broker.hidden_writes.records import Check, encode_record
from anabranch.broker.hidden_writes.topic import ATTEMPTS_SHOWN_MAX, OpenWrite
from anabranch.broker.subscription.reader_loss import is_other_topic
from anabranch.broker.topic.topic import Topic
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

routes = Routes("/admin/v2/anabranch", tag="hidden writes")

# Some 200,000 attempts: for tasks that write 128 MB each, 25 TB.
ATTEMPTS_BYTES_MAX = 8 << 20
# To drop more, a caller decides that no attempt has won.
DROPPED_MAX = 100_000
# The most undecided batches that a broker tells of at once.
WRITES_SHOWN_MAX = 1_000
# What one turn of the event loop has of them.
_TOPICS_A_TURN = 5
# Up to this many are checked on the loop: more take long.
FEW = 1_000


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=WRITE_CHARS_MAX)]


class Claimed(msgspec.Struct, forbid_unknown_fields=True):
    run: _Name
    by: _Name


class DecideRequest(msgspec.Struct, forbid_unknown_fields=True):
    topics: list[str]
    # None: only claims an existing decision.
    winners: list[str] | None = None
    # The topic that is written to, as its users call it: its right is checked if nothing was written to any topic.
    target: str = ""
    # What the winners have written, for a later run of the same write.
    rows: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    digest: Annotated[str, msgspec.Meta(max_length=WRITE_CHARS_MAX)] = ""
    claim: Claimed | None = None


class Dropped(msgspec.Struct, forbid_unknown_fields=True):
    attempts: list[str]
    target: str = ""


def _in_path(request: HttpRequest) -> WriteBatch:
    return _batch(decoded_once(request.names.words["write"]), request.names.words["number"])


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


BatchInPath = Annotated[WriteBatch, From(_in_path)]


@routes.get("/writes", needs=Needs.ROUTE)
async def open_writes(
    services: AdminServices,
    role: Role,
    request: HttpRequest,
    write: Annotated[str, msgspec.Meta(max_length=WRITE_CHARS_MAX)] = "",
    batch: int = 0,
) -> list[dict[str, Any]]:
    """The undecided batches, by topic, of the topics that brokers have open and the role may produce to.

    Those that delay readers come first, the longest delay before all. Of each broker a thousand are told, and of each
    topic those that have the first thousand attempts; or only that `batch` of a `write`, with up to 100,000 attempts.
    """
    wanted = _batch(write, str(batch)) if write else None
    attempts_max = DROPPED_MAX if wanted is not None else ATTEMPTS_SHOWN_MAX
    found: list[tuple[str, OpenWrite]] = []
    async for topic in in_turns(list(services.loaded().values()), _TOPICS_A_TURN):
        if topic.hidden.has_attempts and await services.rights.may_produce(role, topic.name):
            found += [(str(topic.name), one) for one in topic.hidden.open_writes(wanted, attempts_max)]
            if len(found) > 2 * WRITES_SHOWN_MAX:
                found = _first_of(found)
    mine = [
        {
            "topic": topic,
            "write": one.batch.write,
            "batch": one.batch.batch,
            "attempts": list(one.attempts),
            "entries": one.entries,
            "producers": one.producers,
            "heldSeconds": one.held_s,
        }
        for topic, one in _first_of(found)
    ]
    answers = await from_others(services.elsewhere, same_request(request))
    theirs = [one for answer in answers for one in msgspec.json.decode(answer.body)]
    if not theirs:
        return mine
    return sorted(
        mine + theirs, key=lambda one: (-one["heldSeconds"], one["topic"], one["write"], one["batch"])
    )


def _first_of(found: list[tuple[str, OpenWrite]]) -> list[tuple[str, OpenWrite]]:
    return sorted(found, key=lambda one: (-one[1].held_s, one[0], one[1].batch))[:WRITES_SHOWN_MAX]


@routes.get("/writes/{write}/{number}", needs=Needs.ROUTE)
async def get_record(services: AdminServices, role: Role, batch: BatchInPath) -> HttpAnswer:
    record = await services.write_records.get(batch)
    if record is None:
        raise RestError(404, f"There is no record of {batch}")
    await _may_change(services, role, ())(record)
    return _answer(record)


@routes.put("/writes/{write}/{number}", needs=Needs.ROUTE)
async def decide(services: AdminServices, role: Role, batch: BatchInPath, request: HttpRequest) -> HttpAnswer:
    """Stores the winners unless there are some: then those are the answer, and the caller continues with them."""
    given = await body(request, DecideRequest, bytes_max=ATTEMPTS_BYTES_MAX)
    claim = None if given.claim is None else Claim(given.claim.run, given.claim.by)
    if given.winners is None:
        found = await services.write_records.claim(batch, claim, check=_may_change(services, role, ()))
        if found is None:
            raise RestError(404, f"There is no record of {batch}")
        return _answer(found)
    winners = await _attempts(given.winners)
    # Each once, and in turns: a request may name very many.
    topics = [TopicName.parse(topic) async for topic in in_turns(dict.fromkeys(given.topics))]
    for topic in topics:
        if topic.domain not in LOGGED:
            raise RestError(
                412, f"{topic} has no log of its own: name segments, partitions or persistent topics"
            )
    about = topics or _target(given.target)
    # Rights are checked once per topic, not for each of a thousand segments.
    about = list(
        dict.fromkeys(scalable_name(topic) if topic.domain is Domain.SEGMENT else topic for topic in about)
    )
    async for topic in in_turns(about):
        await services.rights.produce(role, topic)
    check = _may_change(services, role, about)
    try:
        record = await services.write_records.decide(
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


@routes.post("/writes/{write}/{number}/drop", needs=Needs.ROUTE)
async def drop(services: AdminServices, role: Role, batch: BatchInPath, request: HttpRequest) -> HttpAnswer:
    """Those attempts cannot win any more."""
    given = await body(request, Dropped, bytes_max=ATTEMPTS_BYTES_MAX)
    about = _target(given.target)
    for topic in about:
        await services.rights.produce(role, topic)
    may_change = _may_change(services, role, about)
    attempts = await _attempts(given.attempts)

    async def check(record: WriteRecord) -> None:
        await may_change(record)
        if not record.is_decided and len(record.dropped) + len(attempts) > DROPPED_MAX:
            raise RestError(
                412,
                f"{DROPPED_MAX} attempts at {batch} are dropped at most: decide that nothing has won instead",
            )

    return _answer(await services.write_records.drop(batch, attempts, about=about, check=check))


@routes.post("/reveal" + PATH, needs=Needs.ROUTE)
async def reveal(
    services: AdminServices,
    role: Role,
    name: LoggedTopic,
    topicId: str = "",
    write: str = "",
    batch: str = "",
) -> HttpAnswer:
    """Answers once the winners' entries in that topic are visible, and the others' dropped, permanently.

    410 if `topicId` is the id of another topic of that name: the entries were deleted with the former topic."""
    revealed = _batch(write, batch)
    await services.rights.produce(role, name)
    await check_owned(services, name)
    try:
        await (await _revealed_by(services, name, topicId)).hidden.reveal(revealed)
    except LogError as error:
        # Opened by another broker, or lost with its disk: its next owner can reveal the entries.
        raise RestError(503, f"{name}: {error}; ask again") from None
    return NO_CONTENT


async def _revealed_by(services: AdminServices, name: TopicName, topic_id: str) -> Topic:
    """404 for a segment that is collected, which happens only after revealing its winners; 410 if its topic is gone."""
    try:
        topic = await single(services, name)
    except RestError:
        parent = scalable_name(name)
        record = await services.records.get(parent) if name.domain is Domain.SEGMENT else None
        if name.domain is Domain.SEGMENT and (record is None or record.is_deleting):
            raise RestError(410, f"{parent} does not exist, and {name} is gone with it") from None
        if record is not None and topic_id not in ("", record.layout.topic_id):
            raise _made_again(name, topic_id) from None
        raise
    log = topic.log.topic_record
    if is_other_topic(log, topic_id) and topic_id != await services.part_of(name, log):
        raise _made_again(name, topic_id)
    return topic


def _made_again(name: TopicName, topic_id: str) -> RestError:
    return RestError(410, f"{name} was deleted and made again: the topic with the id {topic_id} is gone")


def _may_change(services: AdminServices, role: str, about: Sequence[TopicName]) -> Check:
    """A check for roles that may produce to all topics of the record, whatever the caller says they are.

    A record without topics gets those that the caller has named and may produce to. Without either it takes a super
    user: a role that may write nowhere must not create records in the shared store."""

    async def check(record: WriteRecord) -> None:
        for topic in record.concerns:
            await services.rights.produce(role, topic)
        if not record.concerns and not about:
            await services.rights.super_user(role)

    return check


def _target(text: str) -> list[TopicName]:
    return [TopicName.parse(text)] if text else []


def _answer(record: WriteRecord) -> HttpAnswer:
    return HttpAnswer(encode_record(record), JSON)
