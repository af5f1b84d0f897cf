"""Work on topics, done by the owner of each: here, or at the broker that owns it.

    @owner_call
    async def skip_all(services: AdminServices, name: TopicName, subscription: str) -> bool: ...

    found = await at_owners(services, names, skip_all, subscription)

The function runs for each topic at its owner, with arguments that MessagePack can carry. One request to a broker is for
many topics. Topics that do not exist are left out of the result. If a call is refused, those after it in the same
request are not begun, and the first refusal, by the order of the names, is raised.

A broker that does not own a topic refuses without having done anything; its owner is looked up again and asked then.
A broker that does not answer may have done its part: only calls that change nothing are repeated.
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Final, Generic, Literal, ParamSpec, TypeVar

import msgspec

from anabranch.broker.admin.elsewhere import BrokerSilent, InnerRequest
from anabranch.broker.admin.http.answer import HttpAnswer
from anabranch.broker.admin.http.errors import RestError, status_of, text_of
from anabranch.broker.admin.http.large import in_turns
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.request import HttpRequest
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.catalog.owners import BrokerAddress, ServedElsewhere
from anabranch.broker.errors import NotReadyError, TopicNotFoundError
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName

P = ParamSpec("P")
R = TypeVar("R")

PATH: Final = "/inner/topics/"
MEDIA: Final = "application/msgpack"
# Topics of one request to a broker, and requests under way at a time.
TOPICS_PER_REQUEST: Final = 100
REQUESTS_MAX: Final = 64
CALL_BYTES_MAX: Final = 16 << 20
# An answer that has this size gets no more results: the rest is asked for again.
ANSWER_BYTES: Final = 4 << 20
# Pauses before owners are looked up again: two brokers may hear of a change at different times.
PAUSES_S: Final = (0.0, 0.05, 0.2, 0.5)

_KNOWN: Final[dict[str, OwnerCall[Any, Any]]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class OwnerCall(Generic[P, R]):
    """A function on one topic that the topic's owner runs."""

    name: str
    run: Callable[Concatenate[AdminServices, TopicName, P], Awaitable[R]]
    # True for a call that changes nothing: it may be repeated after a broker did not answer.
    is_read: bool = False

    def read_arguments(self, given: Sequence[Any]) -> Sequence[Any]:
        kinds = [kind for name, kind in typing.get_type_hints(self.run).items() if name != "return"][2:]
        return [msgspec.convert(value, kind) for value, kind in zip(given, kinds, strict=True)]

    def read_result(self, value: Any) -> Any:
        return msgspec.convert(value, typing.get_type_hints(self.run)["return"])


def owner_call(run: Callable[Concatenate[AdminServices, TopicName, P], Awaitable[R]]) -> OwnerCall[P, R]:
    """Declares a function that owners run. Its annotations say how arguments and result are carried."""
    return _declare(run, is_read=False)


def owner_read(run: Callable[Concatenate[AdminServices, TopicName, P], Awaitable[R]]) -> OwnerCall[P, R]:
    """As `owner_call`, for a function that changes nothing."""
    return _declare(run, is_read=True)


def _declare(
    run: Callable[Concatenate[AdminServices, TopicName, P], Awaitable[R]], *, is_read: bool
) -> OwnerCall[P, R]:
    name = f"{run.__module__.rpartition('.')[2]}.{run.__name__}"
    assert name not in _KNOWN, name
    made = _KNOWN[name] = OwnerCall(name, run, is_read)
    return made


# -- how a call and its outcomes are carried


class CarriedCall(msgspec.Struct, frozen=True):
    topics: list[str]
    arguments: list[Any]


class CallOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a call for one topic. `unbegun`: a call before it was refused. `moved`: the broker does not own
    the topic. `later`: not done, because the answer is large already."""

    kind: Literal["done", "missing", "moved", "unbegun", "later", "refused"]
    value: Any = None
    status: int = 0
    text: str = ""


_MOVED: Final = CallOutcome("moved")
_UNBEGUN: Final = CallOutcome("unbegun")
_MISSING: Final = CallOutcome("missing")
_LATER: Final = CallOutcome("later")


# -- the broker that asks


async def at_owners(
    services: AdminServices,
    names: Iterable[TopicName],
    call: OwnerCall[P, R],
    *arguments: P.args,
    **none: P.kwargs,
) -> list[tuple[TopicName, R]]:
    """The call's results for the topics that exist, in the order of the names."""
    assert not none, "arguments are given by position"
    names = list(names)
    if not services.has_others:
        return await _here(services, names, call, arguments)
    outcomes: dict[TopicName, CallOutcome] = {}
    left = names
    for pause in PAUSES_S:
        if pause:
            await asyncio.sleep(pause)
        outcomes |= await _round(services, left, call, arguments)
        left = [name for name in left if outcomes[name].kind == "moved"]
        if not left:
            break
    return _results(names, outcomes)


async def _here(
    services: AdminServices, names: Sequence[TopicName], call: OwnerCall[Any, R], arguments: Sequence[Any]
) -> list[tuple[TopicName, R]]:
    found = []
    async for name in in_turns(names, TOPICS_PER_REQUEST):
        try:
            found.append((name, await call.run(services, name, *arguments)))
        except TopicNotFoundError:
            continue
    return found


async def _round(
    services: AdminServices, names: Sequence[TopicName], call: OwnerCall[Any, Any], arguments: Sequence[Any]
) -> dict[TopicName, CallOutcome]:
    """Asks each topic's present owner."""
    mine: list[TopicName] = []
    theirs: dict[str, list[TopicName]] = {}
    addresses: dict[str, BrokerAddress] = {}
    async for name in in_turns(names):
        owner = services.owners.owner(name) or await services.owners.resolve(name)
        if services.owners.is_mine(name):
            mine.append(name)
            continue
        addresses[owner.service_url] = owner
        theirs.setdefault(owner.service_url, []).append(name)
    room = asyncio.Semaphore(REQUESTS_MAX)

    async def asked(owner: BrokerAddress, some: Sequence[TopicName]) -> dict[TopicName, CallOutcome]:
        outcomes: dict[TopicName, CallOutcome] = {}
        while some:
            async with room:
                outcomes |= await _ask(services, owner, some, call, arguments)
            # At least the first one was done.
            some = [name for name in some if outcomes[name].kind == "later"]
        return outcomes

    found = await asyncio.gather(
        _all_here(services, mine, call, arguments),
        *(
            asked(addresses[url], some[at : at + TOPICS_PER_REQUEST])
            for url, some in theirs.items()
            for at in range(0, len(some), TOPICS_PER_REQUEST)
        ),
    )
    return {name: outcome for one in found for name, outcome in one.items()}


async def _all_here(
    services: AdminServices, names: Sequence[TopicName], call: OwnerCall[Any, Any], arguments: Sequence[Any]
) -> dict[TopicName, CallOutcome]:
    return dict(zip(names, await _performed(services, names, call, arguments), strict=True))


async def _ask(
    services: AdminServices,
    owner: BrokerAddress,
    names: Sequence[TopicName],
    call: OwnerCall[Any, Any],
    arguments: Sequence[Any],
) -> dict[TopicName, CallOutcome]:
    carried = msgspec.msgpack.encode(CarriedCall([str(name) for name in names], list(arguments)))
    try:
        answer = await services.elsewhere.ask(owner, InnerRequest("POST", PATH + call.name, body=carried))
    except BrokerSilent as error:
        # Its topics may have another owner soon.
        silent = _MOVED if call.is_read else CallOutcome("refused", status=503, text=str(error))
        return dict.fromkeys(names, silent)
    if not answer.is_success:
        refused = CallOutcome("refused", status=answer.status, text=answer.reason)
        return dict.fromkeys(names, refused)
    outcomes = msgspec.msgpack.decode(answer.body, type=list[CallOutcome])
    return {
        name: CallOutcome("done", call.read_result(one.value)) if one.kind == "done" else one
        for name, one in zip(names, outcomes, strict=True)
    }


def _results(
    names: Sequence[TopicName], outcomes: dict[TopicName, CallOutcome]
) -> list[tuple[TopicName, Any]]:
    found = []
    for name in names:
        outcome = outcomes[name]
        if outcome.kind == "refused":
            raise RestError(outcome.status, outcome.text)
        if outcome.kind == "moved":
            raise NotReadyError(f"{name} is moving from one broker to another: ask again")
        if outcome.kind == "done":
            found.append((name, outcome.value))
    return found


# -- the broker that is asked

inner = Routes(PATH.rstrip("/"), tag="inner", needs=Needs.NOTHING, is_described=False)


@inner.post("/{call}")
async def called(services: AdminServices, request: HttpRequest, call: str) -> HttpAnswer:
    found = _KNOWN.get(call)
    if found is None:
        raise RestError(404, f"This broker does not know the call {call}: is it of another release?")
    carried = msgspec.msgpack.decode(await request.read(CALL_BYTES_MAX), type=CarriedCall)
    names = [TopicName.parse(text) for text in carried.topics]
    arguments = found.read_arguments(carried.arguments)
    outcomes: list[CallOutcome] = []
    size = 0
    for name in names:
        if size >= ANSWER_BYTES:
            outcomes.append(_LATER)
            continue
        if outcomes and outcomes[-1].kind in ("refused", "unbegun"):
            outcomes.append(_UNBEGUN)
            continue
        outcomes.append(await _outcome(services, name, found, arguments))
        size += len(msgspec.msgpack.encode(outcomes[-1]))
        await asyncio.sleep(0)
    return HttpAnswer(msgspec.msgpack.encode(outcomes), MEDIA)


async def _performed(
    services: AdminServices, names: Sequence[TopicName], call: OwnerCall[Any, Any], arguments: Sequence[Any]
) -> list[CallOutcome]:
    """The outcomes of topics of this broker, in order; after a refusal nothing more is begun."""
    outcomes: list[CallOutcome] = []
    refusal: CallOutcome | None = None
    async for name in in_turns(names, TOPICS_PER_REQUEST):
        outcome = _UNBEGUN if refusal is not None else await _outcome(services, name, call, arguments)
        if outcome.kind == "refused":
            refusal = outcome
        outcomes.append(outcome)
    return outcomes


async def _outcome(
    services: AdminServices, name: TopicName, call: OwnerCall[Any, Any], arguments: Sequence[Any]
) -> CallOutcome:
    if not services.owners.is_mine(name):
        return _MOVED
    try:
        return CallOutcome("done", await call.run(services, name, *arguments))
    except TopicNotFoundError:
        return _MISSING
    except ServedElsewhere:
        return _MOVED
    except AnabranchError as error:
        return CallOutcome("refused", status=status_of(error), text=text_of(error))
