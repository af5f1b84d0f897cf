"""Every interleaving of one writer, some fencers and an object store, by exhaustion.

The world is a value; from each world every possible next step is taken, and every world is visited once. A request
takes effect at one time and is answered at another; within a budget of faults, an answer is lost, a request takes
effect after its caller was told that nothing is known of it, or never, or a conflict is reported where nothing is.
The writer's and the fencers' decisions are those of the product (`storage/object/core`); what they are handed here is
only smaller.

With deletion, the writer stores checkpoints, and what they make superfluous goes at any time; so does, once the answer
about the whole log is stored, every commit of it. A fencer reads a checkpoint and then what lies behind it, each at a
time of its own. Requests of the writer may be on their way for as long as they like: a writer that slept for a week.

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
    # Those that only show where commits are deleted.
    DELETED_UNCHECKPOINTED = "confirmed commits deleted without a checkpoint"
    PARTIAL_ANSWER_IS_FINAL = "commits deleted once some ledgers were taken"
    CHECKPOINT_KEPT = "the checkpoint not read again after the fence"
    SCANS_BELIEVED = "the checkpoint not read again after the commits"
    LOW_FENCE_BELIEVED = "a fence among deleted numbers believed"
    FENCES_DELETED_TOO = "fences deleted as commits are"


OF_DELETION = frozenset(
    {
        Sabotage.DELETED_UNCHECKPOINTED,
        Sabotage.PARTIAL_ANSWER_IS_FINAL,
        Sabotage.CHECKPOINT_KEPT,
        Sabotage.SCANS_BELIEVED,
        Sabotage.LOW_FENCE_BELIEVED,
        Sabotage.FENCES_DELETED_TOO,
    }
)


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


class Checkpoint(NamedTuple):
    """What the writer has stored of its log: commits up to an ordinal, and the fences that it has met."""

    scan_from: int = 1
    ordinal: int = 0
    ends: tuple[int, ...] = (0,) * len(LEDGERS)
    met: tuple[tuple[int, int], ...] = ()


NO_CHECKPOINT = Checkpoint()


class Recovery(NamedTuple):
    """A fencer whose fence stands: the checkpoint that it read last, and what it has read behind it."""

    fence: int
    began_at: Checkpoint
    checkpoint: Checkpoint | None = None
    scanned: tuple[tuple[int, StoredObject], ...] | None = None


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
    # Fences that the writer has met: ledger and number.
    met: tuple[tuple[int, int], ...] = ()
    checkpoint: Checkpoint = NO_CHECKPOINT
    # From where on each fencer lists, and how far it is in reading.
    firsts: tuple[int, ...] = ()
    recoveries: tuple[Recovery | None, ...] = ()

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
    # Whether commits are deleted, and how many checkpoints there are at most.
    checkpoints: int = 0

    def start(self) -> World:
        fencers = tuple(Fencing(one, distance=self.distance) for one in self.fencers)
        none = (None,) * len(fencers)
        return World(
            Numbering(self.window),
            fencers,
            none,
            faults=self.faults,
            firsts=(1,) * len(fencers),
            recoveries=none,
        )


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
        yield _begin(plan, replace(world, begun=world.begun + 1), world.begun)
    if plan.checkpoints:
        yield from _deletions(plan, world)
        for who, recovery in enumerate(world.recoveries):
            if recovery is not None:
                yield _recover(plan, world, who, recovery)
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


def _begin(plan: Plan, world: World, who: int) -> World:
    """The fencer reads the newest checkpoint, and sets out to put its fence behind that."""
    state = Fencing(plan.fencers[who], distance=plan.distance)
    firsts = (*world.firsts[:who], world.checkpoint.scan_from, *world.firsts[who + 1 :])
    return _fencer_effects(plan, replace(world, firsts=firsts), who, state, state.begin())


def _deletions(plan: Plan, world: World) -> Iterator[World]:
    """The writer stores a checkpoint; the lowest of the commits that nobody needs goes."""
    writer = world.writer
    if not world.has_ended and writer.confirmed > world.checkpoint.ordinal:
        stored = [number for _, number in writer.stored]
        made = Checkpoint(min([*stored, writer.settled + 1]), writer.confirmed, world.confirmed, world.met)
        if made.ordinal <= plan.checkpoints:
            yield replace(world, checkpoint=made)
    needed_from = world.checkpoint.scan_from
    if plan.sabotage is Sabotage.DELETED_UNCHECKPOINTED:
        needed_from = writer.settled + 1
    for answer, scope in zip(world.answers, plan.fencers, strict=True):
        is_final = scope is None or plan.sabotage is Sabotage.PARTIAL_ANSWER_IS_FINAL
        if answer is not None and is_final:
            needed_from = 1 << 30
    for number, one in world.objects:
        is_fence = isinstance(one, FenceObject)
        if number < needed_from and (not is_fence or plan.sabotage is Sabotage.FENCES_DELETED_TOO):
            yield replace(world, objects=tuple(row for row in world.objects if row[0] != number))
            return


def _recover(plan: Plan, world: World, who: int, now: Recovery) -> World:
    """The next step of a fencer whose fence stands."""
    known = [answer for answer, scope in zip(world.answers, plan.fencers, strict=True) if scope is None]
    if any(answer is not None for answer in known):
        # The answer about the whole log is stored: it counts, whatever this one would find.
        (final, *_) = [dict(answer) for answer in known if answer is not None]
        return _answered(plan, world, who, final)
    if now.checkpoint is None:
        checkpoint = now.began_at if plan.sabotage is Sabotage.CHECKPOINT_KEPT else world.checkpoint
        if checkpoint.scan_from > now.fence and plan.sabotage is not Sabotage.LOW_FENCE_BELIEVED:
            return _begin(plan, _recovering(world, who, None), who)
        return _recovering(world, who, now._replace(checkpoint=checkpoint))
    if now.scanned is None:
        checkpoint = now.checkpoint
        numbers = range(checkpoint.scan_from, now.fence + 1)
        found = tuple((number, one) for number, one in world.objects if number in numbers)
        if len(found) < len(numbers) and plan.sabotage is not Sabotage.CHECKPOINT_KEPT:
            # Some were deleted since the checkpoint was read: everything is read again.
            return _begin(plan, _recovering(world, who, None), who)
        return _recovering(world, who, now._replace(scanned=found))
    checkpoint = now.checkpoint if plan.sabotage in _OLD_READS else world.checkpoint
    if checkpoint.scan_from > now.fence and plan.sabotage is not Sabotage.LOW_FENCE_BELIEVED:
        return _begin(plan, _recovering(world, who, None), who)
    scanned = [(number, one) for number, one in now.scanned if number >= checkpoint.scan_from]
    ends = _folded(scanned, plan.fencers[who], checkpoint)
    return _answered(plan, world, who, ends)


_OLD_READS = (Sabotage.CHECKPOINT_KEPT, Sabotage.SCANS_BELIEVED)


def _recovering(world: World, who: int, now: Recovery | None) -> World:
    return replace(world, recoveries=(*world.recoveries[:who], now, *world.recoveries[who + 1 :]))


def _answered(plan: Plan, world: World, who: int, ends: dict[int, int]) -> World:
    scope = plan.fencers[who]
    answer = tuple(sorted((one, end) for one, end in ends.items() if scope is None or one in scope))
    answers = (*world.answers[:who], answer, *world.answers[who + 1 :])
    return replace(_recovering(world, who, None), answers=answers)


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
            case numbers.MeetFence(number, ledgers):
                lost = frozenset(LEDGERS) if ledgers is None else ledgers
                met = (*world.met, *((one, number) for one in sorted(lost - world.lost)))
                world = replace(world, lost=world.lost | lost, met=met if plan.checkpoints else ())
                world = replace(world, has_ended=ledgers is None or world.has_ended)
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
        first = world.firsts[who]
        event = fencing.NumbersListed(first, frozenset(one for one in answer if one >= first))
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
                if plan.checkpoints:
                    began_at = NO_CHECKPOINT if world.firsts[who] == 1 else world.checkpoint
                    world = _recovering(world, who, Recovery(fence, began_at))
                else:
                    below = [(number, one) for number, one in world.objects if number <= fence]
                    world = _answered(plan, world, who, _folded(below, state.ledgers, NO_CHECKPOINT))
    return world


def _ask(world: World, request: Request) -> World:
    return replace(world, requests=world.requests | {request})


def _folded(
    scanned: list[tuple[int, StoredObject]], ledgers: frozenset[int] | None, checkpoint: Checkpoint
) -> dict[int, int]:
    """What a fencer finds of the ledgers that it wants: in the checkpoint, and behind it below its fence."""
    first = FirstFences.among(
        (n, FencedLedgers(one.ledgers)) for n, one in scanned if isinstance(one, FenceObject)
    )
    first.of |= dict(checkpoint.met)
    commits = sorted((one.ordinal, number, one) for number, one in scanned if isinstance(one, CommitObject))
    folds = {
        one: LedgerFold(entries_end=checkpoint.ends[one - 1])
        for one in LEDGERS
        if ledgers is None or one in ledgers
    }
    for ordinal, number, commit in commits:
        for ledger, entry in commit.entries:
            if ordinal > checkpoint.ordinal and ledger in folds and not first.is_void(ledger, number):
                folds[ledger].add_run(entry, 1, 1, ())
    return {ledger: fold.entries_end for ledger, fold in folds.items()}
