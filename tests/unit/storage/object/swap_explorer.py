"""Every interleaving of some rewriters of one log, one that looks for garbage, and an object store, by exhaustion.

The log has two entries that are wanted for ever, each in an object of its own. A rewriter reads the newest map, copies
an entry into a new object, creates the next map, and lists the maps to see whether it has counted; then what it has
replaced goes, and so do maps that are not the newest. Between any two of its steps it may sleep for as long as the
others work. Deletions land at any later time, and within a budget of faults once more after that. The sweeper lists
objects that no map names, stores a map that names the same as the newest one, and deletes what is garbage by the rule.
The rules are those of the product (`storage/object/core/maps.py`).

The law: what the newest map names exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from anabranch.storage.object.core.maps import has_counted, is_garbage

# Which object has each of the two entries.
Places = tuple[str, str]
START: Places = ("source 0", "source 1")


class SwapSabotage(Enum):
    NONE = "none"
    CREATED_HAS_COUNTED = "a map that was created taken for the newest"
    UNNAMED_IS_GARBAGE = "an object deleted because no map names it yet"
    REFUSED_HAS_COUNTED = "a map refused as existing taken for one's own"
    NAMES_REUSED = "the names of deleted objects chosen again"


class Step(Enum):
    IDLE = 0
    PLANNED = 1
    COPIED = 2
    MAPPED = 3


class Rewriter(NamedTuple):
    entry: int
    turns: int
    step: Step = Step.IDLE
    base: int = 0
    places: Places = START
    name: str = ""
    created: bool = False


class Sweeper(NamedTuple):
    turns: int
    # What it has seen that no map names, and the newest map then.
    seen: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class SwapWorld:
    rewriters: tuple[Rewriter, ...]
    sweeper: Sweeper
    objects: frozenset[str] = frozenset(START)
    # Number, and what it names.
    maps: tuple[tuple[int, Places], ...] = ((0, START),)
    # Deletions on their way, and how often one lands again.
    deletions: frozenset[str] = frozenset()
    repeats: int = 0
    names: int = 0

    @property
    def newest(self) -> tuple[int, Places]:
        return self.maps[-1]


@dataclass(frozen=True, slots=True)
class SwapPlan:
    # Of each rewriter: which entry it moves, and how often.
    rewriters: tuple[tuple[int, int], ...]
    sweeps: int = 1
    repeats: int = 0
    sabotage: SwapSabotage = SwapSabotage.NONE


class SwapLawBroken(AssertionError):
    pass


def explore_swaps(plan: SwapPlan) -> int:
    """Visits every world, and says how many there are; raises SwapLawBroken in the first that breaks the law."""
    rewriters = tuple(Rewriter(entry, turns) for entry, turns in plan.rewriters)
    stack = [SwapWorld(rewriters, Sweeper(plan.sweeps), repeats=plan.repeats)]
    seen = set(stack)
    while stack:
        world = stack.pop()
        if missing := set(world.newest[1]) - world.objects:
            raise SwapLawBroken(f"map {world.newest[0]} names {missing}")
        for one in _steps(plan, world):
            if one not in seen:
                seen.add(one)
                stack.append(one)
    return len(seen)


def _steps(plan: SwapPlan, world: SwapWorld) -> Iterator[SwapWorld]:
    for n, one in enumerate(world.rewriters):
        for world_, now in _rewrite(plan, world, one):
            yield replace(world_, rewriters=(*world.rewriters[:n], now, *world.rewriters[n + 1 :]))
    yield from _sweep(plan, world)
    for name in world.deletions:
        landed = replace(world, objects=world.objects - {name}, deletions=world.deletions - {name})
        yield landed
        if world.repeats:
            # Its answer is lost: it is asked for again.
            yield replace(landed, deletions=world.deletions, repeats=world.repeats - 1)


def _rewrite(plan: SwapPlan, world: SwapWorld, now: Rewriter) -> Iterator[tuple[SwapWorld, Rewriter]]:
    match now.step:
        case Step.IDLE:
            if now.turns:
                base, places = world.newest
                yield (
                    world,
                    now._replace(step=Step.PLANNED, turns=now.turns - 1, base=base, places=places),
                )
        case Step.PLANNED:
            name, names = f"copy {world.names}", world.names + 1
            if plan.sabotage is SwapSabotage.NAMES_REUSED:
                names = 0
                name = next(one for k in range(99) if (one := f"copy {k}") not in world.objects)
            if now.places[now.entry] not in world.objects:
                # Somebody else has moved it: it looks again.
                yield world, now._replace(step=Step.IDLE, name="")
                return
            made = replace(world, objects=world.objects | {name}, names=names)
            yield made, now._replace(step=Step.COPIED, name=name)
            # It is killed here.
            yield made, now._replace(step=Step.IDLE, turns=0, name="")
        case Step.COPIED:
            number, is_there = now.base + 1, any(one == now.base + 1 for one, _ in world.maps)
            if not is_there:
                world = replace(world, maps=tuple(sorted((*world.maps, (number, _moved(now))))))
            yield world, now._replace(step=Step.MAPPED, created=not is_there)
        case Step.MAPPED:
            newest, _ = world.newest
            created = now.created or plan.sabotage is SwapSabotage.REFUSED_HAS_COUNTED
            counted = has_counted(created, now.base + 1, newest)
            if plan.sabotage in (SwapSabotage.CREATED_HAS_COUNTED, SwapSabotage.REFUSED_HAS_COUNTED):
                counted = created
            if counted:
                world = replace(
                    world,
                    deletions=world.deletions | {now.places[now.entry]},
                    maps=tuple(one for one in world.maps if one[0] >= newest),
                )
            yield world, Rewriter(now.entry, now.turns)


def _moved(now: Rewriter) -> Places:
    places = list(now.places)
    places[now.entry] = now.name
    return places[0], places[1]


def _sweep(plan: SwapPlan, world: SwapWorld) -> Iterator[SwapWorld]:
    newest, places = world.newest
    sweeper = world.sweeper
    unnamed = world.objects - set(places) - {name for name, _ in sweeper.seen} - world.deletions
    if sweeper.turns and unnamed:
        seen = sweeper.seen | {(name, newest) for name in unnamed}
        yield replace(world, sweeper=Sweeper(sweeper.turns - 1, seen))
    if any(seen >= newest for _, seen in sweeper.seen):
        # A map that closes the number which their makers were to use.
        yield replace(world, maps=(*world.maps, (newest + 1, places)))
    for name, seen_with in sweeper.seen:
        is_late = is_garbage(seen_with, newest, is_named=name in places)
        if plan.sabotage is SwapSabotage.UNNAMED_IS_GARBAGE:
            is_late = name not in places
        if is_late or name in places:
            left = sweeper._replace(seen=sweeper.seen - {(name, seen_with)})
            gone = {name} if is_late else set()
            yield replace(world, sweeper=left, deletions=world.deletions | gone)
