"""Every interleaving of one writer, some fencers and an object store, by exhaustion.

The world is a value; from each world every possible next step is taken, and every world is visited once. A request
takes effect at one time and is answered at another; within a budget of faults, an answer is lost, a request takes
effect after its caller was told that nothing is known of it, or never, or a conflict is reported where nothing is.
The writer's and the fencers' decisions are those of the product (`storage/object/core`); what they are handed here is
only smaller.

The law: once a fencer has its answer about a ledger, the writer has confirmed no more of that ledger than the answer
has, and never will. All answers about a ledger agree. In the end everything is confirmed that no fence names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from anabranch.storage.object.core import fencing, numbers
from anabranch.storage.object.core.fencing import Fencing
from anabranch.storage.object.core.fold import FirstFences, LedgerFold
from anabranch.storage.object.core.numbers import FencedLedgers, Found, Numbering
from anabranch.storage.object.medium import Created

WRITER = -1
LEDGERS = (1, 2)


class Sabotage(Enum):
    NONE = "none"
    FENCES_DELETED = "fences deleted"
    EXISTS_IS_STORED = "exists taken as stored"
    UNKNOWN_IS_STORED = "unknown taken as stored"
    CONFIRMED_AS_STORED = "confirmed out of order"
    GAPS_LEFT = "gaps not filled"
    EXISTS_IS_A_FENCE = "exists taken as a fence for all"


class CommitObject(NamedTuple):
    ordinal: int
    # (ledger, entry id) of each entry in it.
    entries: tuple[tuple[int, int], ...]


class FenceObject(NamedTuple):
    fencer: int
    ledgers: frozenset[int] | None


StoredObject = CommitObject | FenceObject


class Request(NamedTuple):
    """What somebody asked the store for."""

    who: int
    # `create`, `read`, `list`; `ghost`: a creation whose caller was told that nothing is known.
    verb: str
    number: int
    content: StoredObject | None = None
    # What it is answered with, once it has taken effect.
    answer: object = None


@dataclass(frozen=True, slots=True)
class World:
    writer: Numbering
    fencers: tuple[Fencing, ...]
    # What each fencer found, by ledger; None while it is at work.
    answers: tuple[tuple[tuple[int, int], ...] | None, ...]
    begun: int = 0
    objects: tuple[tuple[int, StoredObject], ...] = ()
    requests: frozenset[Request] = frozenset()
    sealed: tuple[CommitObject, ...] = ()
    confirmed: tuple[int, ...] = (0,) * len(LEDGERS)
    # Ledgers of which the writer has met a fence.
    lost: frozenset[int] = frozenset()
    has_ended: bool = False
    # The number that a commit was confirmed at although nothing is known before it; for a sabotage.
    hasty: frozenset[int] = frozenset()
    faults: int = 0

    def at(self, number: int) -> StoredObject | None:
        return next((one for key, one in self.objects if key == number), None)


@dataclass(frozen=True, slots=True)
class Plan:
    commits: int
    # What each fencer takes: ledgers, or None for all.
    fencers: tuple[frozenset[int] | None, ...]
    faults: int
    window: int = 2
    distance: int = 3
    sabotage: Sabotage = Sabotage.NONE

    def start(self) -> World:
        fencers = tuple(Fencing(one, distance=self.distance) for one in self.fencers)
        return World(Numbering(self.window), fencers, (None,) * len(fencers), faults=self.faults)


class LawBroken(AssertionError):
    pass


@dataclass(slots=True)
class Explored:
    worlds: int = 0
    steps: int = 0
    # How many different runs there are, each a path from the first world to one in which nothing is left to do.
    interleavings: int = 0
    ends: int = 0


def explore(plan: Plan) -> Explored:
    """Visits every world; raises LawBroken in the first that breaks the law."""
    found = Explored()
    paths: dict[World, int] = {}
    # Depth first, and each world twice: to look at its successors, and to add up their paths.
    stack: list[tuple[World, list[World] | None]] = [(plan.start(), None)]
    while stack:
        world, following = stack.pop()
        if following is not None:
            paths[world] = sum(paths[one] for one in following) if following else 1
            continue
        if world in paths:
            continue
        paths[world] = 0
        _check(world)
        following = list(_steps(plan, world))
        found.worlds += 1
        found.steps += len(following)
        if not following:
            found.ends += 1
            _check_end(plan, world)
        stack.append((world, following))
        stack += [(one, None) for one in following if one not in paths]
    found.interleavings = paths[plan.start()]
    return found


def _check(world: World) -> None:
    known: dict[int, int] = {}
    for answer in world.answers:
        for ledger, end in answer or ():
            if known.setdefault(ledger, end) != end:
                raise LawBroken(f"two answers about ledger {ledger}: {end} and {known[ledger]}")
            if world.confirmed[ledger - 1] > end:
                raise LawBroken(f"{world.confirmed[ledger - 1]} of ledger {ledger} confirmed, answered {end}")


def _check_end(plan: Plan, world: World) -> None:
    if any(answer is None for answer in world.answers):
        raise LawBroken("a fencer waits for ever")
    for ledger in LEDGERS:
        is_free = not any(one is None or ledger in one for one in plan.fencers)
        if is_free and not world.has_ended and world.confirmed[ledger - 1] != plan.commits:
            raise LawBroken(
                f"{world.confirmed[ledger - 1]} of {plan.commits} confirmed of a ledger without fence"
            )
    if world.has_ended and None not in plan.fencers:
        raise LawBroken("the log ended, and nobody took it whole")


def _steps(plan: Plan, world: World) -> Iterator[World]:
    if len(world.sealed) < plan.commits and not world.has_ended:
        yield _seal(plan, world)
    if world.begun < len(world.fencers):
        state = world.fencers[world.begun]
        started = replace(world, begun=world.begun + 1)
        yield _fencer_effects(plan, started, world.begun, state, state.begin())
    for request in world.requests:
        left = replace(world, requests=world.requests - {request})
        if request.verb == "ghost":
            yield _land(left, request)[0]
        elif request.answer is not None:
            yield _deliver(plan, left, request, request.answer)
            if request.verb == "create" and world.faults:
                yield _deliver(plan, replace(left, faults=world.faults - 1), request, Created.UNKNOWN)
        else:
            landed, answer = _land(left, request)
            if request.who == WRITER:
                yield replace(landed, requests=landed.requests | {request._replace(answer=answer)})
            else:
                # A fencer only asks for more: whether it hears late, or what it asks for happens late, is the same.
                yield _deliver(plan, landed, request, answer)
            if request.verb == "create" and world.faults:
                faulty = replace(left, faults=world.faults - 1)
                yield _deliver(plan, faulty, request, Created.EXISTS)
                late = replace(faulty, requests=left.requests | {request._replace(verb="ghost")})
                yield _deliver(plan, late, request, Created.UNKNOWN)
                yield _deliver(plan, faulty, request, Created.UNKNOWN)
    if plan.sabotage is Sabotage.FENCES_DELETED and None not in world.answers:
        kept = tuple(one for one in world.objects if not isinstance(one[1], FenceObject))
        if kept != world.objects:
            yield replace(world, objects=kept)


def _seal(plan: Plan, world: World) -> World:
    entry = len(world.sealed)
    made = CommitObject(entry + 1, tuple((one, entry) for one in LEDGERS if one not in world.lost))
    world = replace(world, sealed=(*world.sealed, made))
    return _writer_event(plan, world, numbers.Sealed(made.ordinal))


def _land(world: World, request: Request) -> tuple[World, object]:
    """The request takes effect; what it will be answered."""
    if request.verb == "list":
        return world, frozenset(number for number, _ in world.objects)
    there = world.at(request.number)
    if request.verb == "read":
        return world, there if there is not None else Found.ABSENT
    if there is not None:
        return world, Created.EXISTS
    assert request.content is not None
    return replace(
        world, objects=tuple(sorted((*world.objects, (request.number, request.content))))
    ), Created.STORED


def _deliver(plan: Plan, world: World, request: Request, answer: object) -> World:
    if request.who != WRITER:
        return _to_fencer(plan, world, request, answer)
    if isinstance(answer, Created):
        if plan.sabotage is Sabotage.EXISTS_IS_STORED and answer is Created.EXISTS:
            answer = Created.STORED
        if plan.sabotage is Sabotage.UNKNOWN_IS_STORED and answer is Created.UNKNOWN:
            answer = Created.STORED
        if plan.sabotage is Sabotage.EXISTS_IS_A_FENCE and answer is Created.EXISTS:
            return replace(world, has_ended=True)
        if plan.sabotage is Sabotage.CONFIRMED_AS_STORED and answer is Created.STORED:
            assert isinstance(request.content, CommitObject)
            world = _confirm(world, request.content.ordinal)
        return _writer_event(plan, world, numbers.PutAnswered(request.number, answer))
    return _writer_event(plan, world, numbers.NumberRead(request.number, _found(answer, WRITER)))


def _found(answer: object, who: int) -> Found | FencedLedgers:
    match answer:
        case Found():
            return answer
        case CommitObject():
            return Found.OURS if who == WRITER else Found.FOREIGN
        case FenceObject(fencer, ledgers):
            return Found.OURS if fencer == who else FencedLedgers(ledgers)
        case _:
            raise AssertionError(answer)


def _writer_event(plan: Plan, world: World, event: numbers.WriterEvent) -> World:
    state, effects = numbers.advance(world.writer, event)
    world = replace(world, writer=state)
    for effect in effects:
        match effect:
            case numbers.PutCommit(number, ordinal):
                content = world.sealed[ordinal - 1]
                left = tuple(one for one in content.entries if one[0] not in world.lost)
                world = _ask(world, Request(WRITER, "create", number, content._replace(entries=left)))
            case numbers.PutAgain(number):
                world = _ask(world, Request(WRITER, "create", number, _content_of(world, number)))
            case numbers.ReadNumber(number):
                world = _ask(world, Request(WRITER, "read", number, _content_of(world, number)))
            case numbers.ConfirmCommit(ordinal, _):
                world = _confirm(world, ordinal)
            case numbers.MeetFence(_, ledgers):
                lost = frozenset(LEDGERS) if ledgers is None else ledgers
                world = replace(world, lost=world.lost | lost, has_ended=ledgers is None or world.has_ended)
            case numbers.EndLog():
                raise LawBroken("the writer took an object for a stranger's")
    return world


def _content_of(world: World, number: int) -> CommitObject:
    """What the writer puts under a number again: as many entries as the first time. What it has lost since then may be
    in it, too: it lies above the fence."""
    flight = next(one for one in world.writer.flights if one.number == number)
    return world.sealed[flight.ordinal - 1]


def _confirm(world: World, ordinal: int) -> World:
    confirmed = list(world.confirmed)
    for ledger, entry in world.sealed[ordinal - 1].entries:
        if ledger not in world.lost and not world.has_ended:
            confirmed[ledger - 1] = max(confirmed[ledger - 1], entry + 1)
    return replace(world, confirmed=tuple(confirmed))


def _to_fencer(plan: Plan, world: World, request: Request, answer: object) -> World:
    who = request.who
    event: fencing.FencerEvent
    if request.verb == "list":
        assert isinstance(answer, frozenset)
        event = fencing.NumbersListed(1, answer)
    elif isinstance(answer, Created):
        event = fencing.FenceAnswered(request.number, answer)
    else:
        event = fencing.FenceRead(request.number, _found(answer, who))
    state, effects = fencing.advance_fence(world.fencers[who], event)
    return _fencer_effects(plan, world, who, state, effects)


def _fencer_effects(
    plan: Plan, world: World, who: int, state: Fencing, effects: list[fencing.FencerEffect]
) -> World:
    world = replace(world, fencers=(*world.fencers[:who], state, *world.fencers[who + 1 :]))
    for effect in effects:
        match effect:
            case fencing.ListNumbers():
                world = _ask(world, Request(who, "list", 0))
            case fencing.CreateFence(number):
                content = FenceObject(who, state.ledgers)
                if plan.sabotage is Sabotage.GAPS_LEFT and number != state.fence:
                    world = _to_fencer(plan, world, Request(who, "create", number, content), Created.STORED)
                else:
                    world = _ask(world, Request(who, "create", number, content))
            case fencing.ReadFence(number):
                world = _ask(world, Request(who, "read", number, FenceObject(who, state.ledgers)))
            case fencing.AllSettled(fence):
                answer = tuple(sorted(_ends(world, fence, state.ledgers).items()))
                world = replace(world, answers=(*world.answers[:who], answer, *world.answers[who + 1 :]))
    return world


def _ask(world: World, request: Request) -> World:
    return replace(world, requests=world.requests | {request})


def _ends(world: World, fence: int, ledgers: frozenset[int] | None) -> dict[int, int]:
    """What a fencer finds below its fence, of the ledgers it wants."""
    below = [(number, one) for number, one in world.objects if number <= fence]
    first = FirstFences.among(
        (n, FencedLedgers(one.ledgers)) for n, one in below if isinstance(one, FenceObject)
    )
    commits = sorted((one.ordinal, number, one) for number, one in below if isinstance(one, CommitObject))
    folds = {one: LedgerFold() for one in LEDGERS if ledgers is None or one in ledgers}
    for _, number, commit in commits:
        for ledger, entry in commit.entries:
            if ledger in folds and not first.is_void(ledger, number):
                folds[ledger].add_run(entry, 1, 1, ())
    return {ledger: fold.entries_end for ledger, fold in folds.items()}
