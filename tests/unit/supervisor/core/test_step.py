"""What a supervisor decides: examples of each rule, and properties over any run of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.supervisor.core.processes import (
    BACK_OFF_MAX_S,
    FAILURES_MAX,
    START_MAX_S,
    STEADY_S,
    ClusterState,
    Phase,
    Stage,
    back_off_s,
    new_cluster,
)
from anabranch.supervisor.core.step import (
    AnnounceCluster,
    Began,
    DrainProcess,
    Effect,
    Ended,
    EndSession,
    Event,
    Finish,
    KillProcess,
    Say,
    Served,
    StartProcess,
    StopAsked,
    TimePassed,
    step,
    wake_s,
)

TERM = 15


class Run:
    """A cluster that is told events, and what it wanted done."""

    def __init__(self, brokers: int = 2) -> None:
        self.cluster: ClusterState = new_cluster(brokers)
        self.now_s = 100.0
        self.told: list[str] = []

    def on(self, event: Event) -> list[Effect]:
        """The effects, without what was only said."""
        self.cluster, effects = step(self.cluster, event, self.now_s)
        self.told += [one.text for one in effects if isinstance(one, Say)]
        return [one for one in effects if not isinstance(one, Say)]

    def wait(self) -> list[Effect]:
        """Until the next thing is due."""
        due_s = wake_s(self.cluster)
        assert due_s is not None
        self.now_s = due_s
        return self.on(TimePassed())

    def phase(self, name: str) -> Phase:
        return self.cluster.processes[name].phase


def serving(brokers: int = 2) -> Run:
    run = Run(brokers)
    run.on(Began())
    for name in list(run.cluster.processes):
        run.on(Served(name))
    run.now_s += STEADY_S
    return run


def test_everything_starts_at_once_and_is_announced_when_all_of_it_serves() -> None:
    run = Run(brokers=2)
    assert run.on(Began()) == [
        StartProcess("metadata"),
        StartProcess("broker-0"),
        StartProcess("broker-1"),
    ]
    assert run.on(Served("broker-1")) == []
    assert run.on(Served("metadata")) == []
    assert run.on(Served("broker-0")) == [AnnounceCluster()]


def test_a_broker_that_was_killed_is_forgotten_by_the_metadata_and_started_again_at_once() -> None:
    run = serving()
    assert run.on(Ended("broker-1", -9)) == [EndSession("broker-1"), StartProcess("broker-1")]
    assert run.told == ["broker-1 was ended by signal 9: starting it again"]
    assert run.on(Served("broker-1")) == []
    assert run.told[1:] == ["broker-1 serves again"]


def test_the_metadata_is_started_again_at_once_and_brokers_go_on() -> None:
    run = serving()
    assert run.on(Ended("metadata", -9)) == [StartProcess("metadata")]
    assert run.phase("broker-0") is Phase.SERVING


def test_a_broker_that_keeps_failing_is_started_later_each_time_and_the_others_stay() -> None:
    run = serving(brokers=2)
    waits = []
    for _ in range(12):
        run.on(Ended("broker-0", 1))
        before_s = run.now_s
        if run.phase("broker-0") is Phase.DEAD:
            run.wait()
        waits.append(run.now_s - before_s)
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(BACK_OFF_MAX_S)
    assert run.cluster.stage is Stage.RUNNING


def test_a_broker_that_has_served_for_a_while_starts_over_with_its_failures() -> None:
    run = serving()
    for _ in range(3):
        run.on(Ended("broker-0", -9))
        if run.phase("broker-0") is Phase.DEAD:
            run.wait()
    run.on(Served("broker-0"))
    run.now_s += STEADY_S
    assert run.on(Ended("broker-0", -9)) == [EndSession("broker-0"), StartProcess("broker-0")]


def test_a_broker_that_was_asked_to_end_by_its_operator_is_no_failure() -> None:
    run = serving()
    for _ in range(10):
        assert run.on(Ended("broker-0", 0)) == [EndSession("broker-0"), StartProcess("broker-0")]
        run.on(Served("broker-0"))


def test_an_error_at_the_first_start_ends_it() -> None:
    run = Run(brokers=2)
    run.on(Began())
    assert run.on(Ended("metadata", 1)) == [DrainProcess("broker-0"), DrainProcess("broker-1")]
    assert run.on(Ended("broker-0", 0)) == [EndSession("broker-0")]
    assert run.on(Ended("broker-1", -15)) == [EndSession("broker-1"), Finish(1)]


def test_a_process_killed_at_the_first_start_is_started_again() -> None:
    run = Run(brokers=1)
    run.on(Began())
    assert run.on(Ended("metadata", -9)) == [StartProcess("metadata")]


def test_a_cluster_without_metadata_gives_up() -> None:
    run = serving()
    effects: list[Effect] = []
    for _ in range(FAILURES_MAX):
        effects = run.on(Ended("metadata", 1))
        if run.cluster.stage is Stage.RUNNING and run.phase("metadata") is Phase.DEAD:
            run.wait()
    assert effects == [DrainProcess("broker-0"), DrainProcess("broker-1")]
    assert "giving up" in run.told[-1]
    # And not that it is started once more.
    assert "again" not in run.told[-1]
    assert run.told[-2].count("starting it again in") == 1
    run.on(Ended("broker-0", 0))
    assert run.on(Ended("broker-1", 0))[-1] == Finish(1)


def test_a_cluster_of_which_every_broker_keeps_failing_gives_up() -> None:
    run = serving(brokers=2)
    effects: list[Effect] = []
    for _ in range(FAILURES_MAX):
        for name in ("broker-0", "broker-1"):
            effects = run.on(Ended(name, 1))
        while run.cluster.stage is Stage.RUNNING and any(not one.is_alive for one in run.cluster.brokers):
            run.wait()
    assert effects[-1] == DrainProcess("metadata")
    assert run.on(Ended("metadata", 0)) == [Finish(1)]


def test_a_stop_drains_the_brokers_first_and_the_metadata_last() -> None:
    run = serving()
    assert run.on(StopAsked(TERM)) == [DrainProcess("broker-0"), DrainProcess("broker-1")]
    assert run.on(Ended("broker-1", 0)) == [EndSession("broker-1")]
    assert run.on(Ended("broker-0", 0)) == [EndSession("broker-0"), DrainProcess("metadata")]
    assert run.on(Ended("metadata", 0)) == [Finish(0)]


def test_metadata_that_dies_while_brokers_drain_is_started_again_for_them() -> None:
    run = serving(brokers=1)
    run.on(StopAsked(TERM))
    run.on(Ended("metadata", -9))
    assert run.wait() == [StartProcess("metadata")]
    run.on(Served("metadata"))
    assert run.on(Ended("broker-0", 0)) == [EndSession("broker-0"), DrainProcess("metadata")]


def test_a_stop_while_a_broker_waits_for_its_next_start_does_not_start_it() -> None:
    run = serving(brokers=2)
    run.on(Ended("broker-0", 1))
    run.on(Ended("broker-0", 1))
    assert run.phase("broker-0") is Phase.DEAD
    assert run.on(StopAsked(TERM)) == [DrainProcess("broker-1")]
    run.now_s += 1000
    assert StartProcess("broker-0") not in run.on(TimePassed())


def test_a_second_signal_kills_whatever_lives() -> None:
    run = serving()
    run.on(StopAsked(TERM))
    run.on(Ended("broker-0", 0))
    assert run.on(StopAsked(TERM)) == [KillProcess("metadata"), KillProcess("broker-1")]
    run.on(Ended("metadata", -9))
    assert run.on(Ended("broker-1", -9)) == [EndSession("broker-1"), Finish(128 + TERM)]


def test_a_restart_that_is_due_after_the_second_signal_does_not_take_place() -> None:
    run = serving(brokers=1)
    run.on(StopAsked(TERM))
    # The broker needs the metadata to close.
    run.on(Ended("metadata", -9))
    assert run.on(StopAsked(TERM)) == [KillProcess("broker-0")]
    assert wake_s(run.cluster) is None
    run.now_s += 1000
    assert run.on(TimePassed()) == []
    assert run.on(Ended("broker-0", -9)) == [EndSession("broker-0"), Finish(128 + TERM)]


def test_a_process_that_never_serves_is_killed_and_started_again() -> None:
    run = serving()
    run.on(Ended("broker-0", -9))
    run.now_s += START_MAX_S
    assert run.on(TimePassed()) == [KillProcess("broker-0")]
    assert wake_s(run.cluster) is None
    run.on(Ended("broker-0", -9))
    assert run.wait() == [StartProcess("broker-0")]


def test_a_process_that_does_not_drain_is_killed() -> None:
    run = serving(brokers=1)
    run.on(StopAsked(TERM))
    assert run.wait() == [KillProcess("broker-0")]


def test_the_pause_before_a_start_grows_and_has_an_end() -> None:
    waits = [back_off_s(failures) for failures in range(1000)]
    assert waits == sorted(waits)
    assert waits[:3] == [0, 0, 0.1]
    assert waits[-1] == BACK_OFF_MAX_S


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, float]]:
    """What happens, to which process, after how many seconds."""
    kinds = st.sampled_from(["served", "ended", "stop", "time"])
    return draw(st.lists(st.tuples(kinds, st.integers(0, 9), st.floats(0, 30)), max_size=60))


@given(histories(), st.integers(1, 4))
def test_whatever_happens_only_living_processes_are_ended_and_it_finishes_once_nothing_lives(
    history: list[tuple[str, int, float]], brokers: int
) -> None:
    """The world: a process lives from `StartProcess` until its end is heard of."""
    run = Run(brokers)
    alive: set[str] = set()
    finished: list[int] = []
    stops = 0

    def performed(effects: list[Effect]) -> None:
        for effect in effects:
            assert not finished
            match effect:
                case StartProcess(name):
                    assert name not in alive
                    assert stops < 2
                    alive.add(name)
                case DrainProcess(name) | KillProcess(name):
                    assert name in alive
                    if name == "metadata" and isinstance(effect, DrainProcess):
                        assert alive == {"metadata"}
                case EndSession(name):
                    assert name not in alive
                case Finish(code):
                    assert not alive
                    finished.append(code)
                case _:
                    pass
        assert {one.name for one in run.cluster.all if one.is_alive} == alive

    def told(event: Event) -> None:
        if isinstance(event, Ended):
            alive.discard(event.name)
        performed(run.on(event))

    told(Began())
    for kind, number, wait_s in history:
        run.now_s += wait_s
        some = sorted(alive)
        if finished:
            return
        if kind == "served" and some:
            told(Served(some[number % len(some)]))
        elif kind == "ended" and some:
            told(Ended(some[number % len(some)], (0, 1, -9)[number % 3]))
        elif kind == "stop":
            stops += 1
            told(StopAsked(TERM))
        elif kind == "time":
            told(TimePassed())
    # Once it is asked to stop and its processes obey, it ends, whatever came before.
    for _ in range(2):
        if not finished:
            stops += 1
            told(StopAsked(TERM))
    while not finished:
        told(Ended(sorted(alive)[-1], -9))
