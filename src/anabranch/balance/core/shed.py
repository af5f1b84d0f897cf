"""Which bundles leave their brokers so that the loads of all brokers become alike: the rule of Pulsar's TransferShedder
(PIP-192). Pure.

Shedding is due while the standard deviation of the brokers' loads is above its target, or a broker is overloaded, or
nearly idle beside the others (`scales.py`). When it was due more than so many cycles in a row, the most loaded brokers
give bundles to the least loaded ones (`relief.py`); then the loads settle for a while. The same facts give the same
verdict in any order: ties go to the lower id.

What differs from Pulsar, and why:

- A broker gives its bundles to several brokers, each to the least loaded of the moment, until it is down to the mean.
  Pulsar pairs the most loaded broker with the least loaded one and halves their difference, which makes one hot broker
  into two warm ones.
- The heaviest bundle that fits goes first, so that few bundles move: each move is a pause for the clients.
- A destination that a bundle's policies exclude is passed over for the next one. Pulsar tries the least loaded one
  only, so that an idle isolated broker stops all shedding.
- Brokers without a report are left out. Pulsar waits for all, so that one broken reporter stops all shedding.
- A bundle does not go back to where it came from for twice the time in which it does not move at all.

No move makes its destination more loaded than its source is left with, so each one lowers the deviation, and no
destination ends above the middle between the highest load and the mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from anabranch.autoscale.verdict import counted, moment
from anabranch.balance.core.load import BrokerLoad, is_outdated
from anabranch.balance.core.relief import Relief
from anabranch.balance.core.scales import Scales
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.shed_verdict import (
    BundleMove,
    ClusterLoad,
    LastMove,
    NoShed,
    NotMoved,
    ShedState,
    ShedVerdict,
)

# After so many loaded brokers that had nothing to give, the others are not looked at: they are less loaded and help
# less, and a decision must not take long.
FRUITLESS_MAX: Final = 100


def shed(view: ClusterLoad, state: ShedState, settings: BalanceSettings) -> ShedVerdict:
    """The moves that are due now, or the reasons for none. The state in the verdict counts the moves as made."""
    state = state.pruned(view.now_ms, settings)
    if not (settings.is_enabled and settings.is_shedding):
        return ShedVerdict((), "Shedding is switched off.", NoShed.OFF, (), replace(state, hits=0))
    reports, left_out = _counted(view, settings)
    if len(reports) < 2:
        label = left_out[0].label if left_out else NoShed.NO_BROKERS
        because = f"{counted(len(reports), 'broker')} with a load that counts: there is nothing to balance."
        return ShedVerdict((), because, label, tuple(left_out), state)
    scales = Scales(reports, settings)
    mean, std = scales.mean, scales.std

    def stay(label: NoShed, because: str, hits: int) -> ShedVerdict:
        after = replace(state, hits=hits)
        return ShedVerdict((), because, label, tuple(left_out), after, mean, std, std)

    settling = _settling(view, reports, state, settings)
    if settling is not None:
        return stay(NoShed.COOL_DOWN, settling, state.hits)
    due = scales.due()
    if due is None:
        return stay(NoShed.BALANCED, f"The loads are balanced: {scales}.", 0)
    hits = state.hits + 1
    if hits <= settings.shedding_hits:
        because = f"{due.because}, in cycle {hits} of {settings.shedding_hits} that pass without a move."
        return stay(NoShed.HIT_COUNT, because, hits)
    relief = Relief(view, reports, scales, state, settings)
    _relieve(relief, scales, settings)
    left_out += relief.not_moved
    if not relief.moves:
        return stay(NoShed.NO_BUNDLES, f"{due.because}, but no move of a bundle would help.", hits)
    moves = tuple(relief.moves)
    because = f"{due.because}: {counted(len(moves), 'move')}, after which the deviation is {scales.std:.2f}."
    return ShedVerdict(
        moves, because, None, tuple(left_out), _after(moves, state, view.now_ms), mean, std, scales.std
    )


def _relieve(relief: Relief, scales: Scales, settings: BalanceSettings) -> None:
    given = fruitless = 0
    for source in scales.descending():
        if source in relief.got:
            continue
        due = scales.due(source)
        # The brokers that were relieved come before this one: it is the most loaded of the others.
        if due is None or scales.loads[source] <= scales.mean:
            return
        if given >= settings.shedding_brokers_max:
            because = f"{counted(given, 'broker')} gave bundles in this cycle, and no more may"
            relief.not_moved.append(NotMoved(source, NoShed.LIMIT, because))
            return
        if relief.relieve(source, due):
            given += 1
        else:
            fruitless += 1
            if fruitless >= FRUITLESS_MAX:
                because = f"{counted(fruitless, 'more loaded broker')} had no bundle to give"
                relief.not_moved.append(NotMoved(source, NoShed.LIMIT, because))
                return


def _counted(view: ClusterLoad, settings: BalanceSettings) -> tuple[dict[str, BrokerLoad], list[NotMoved]]:
    """The reports that count, by broker in order, and the brokers that are left out."""
    reports: dict[str, BrokerLoad] = {}
    left_out: list[NotMoved] = []
    for broker in sorted(view.brokers):
        load = view.loads.get(broker)
        if load is None:
            left_out.append(NotMoved(broker, NoShed.NO_LOAD, f"{broker} has not reported a load"))
        elif is_outdated(load.measured_ms, view.now_ms, settings):
            because = f"the load of {broker} was last measured at {moment(load.measured_ms)}"
            left_out.append(NotMoved(broker, NoShed.OUTDATED, because))
        else:
            reports[broker] = load
    return reports, left_out


def _settling(
    view: ClusterLoad, reports: Mapping[str, BrokerLoad], state: ShedState, settings: BalanceSettings
) -> str | None:
    """Why the loads do not show yet what the last moves have brought; None once they do."""
    if state.acted_ms is not None and view.now_ms - state.acted_ms < settings.shedding_delay_ms:
        until = moment(state.acted_ms + settings.shedding_delay_ms)
        return f"Bundles were moved at {moment(state.acted_ms)}; the loads settle until {until}."
    for broker, at_ms in sorted(state.touched_ms.items()):
        if broker in reports and reports[broker].measured_ms < at_ms:
            return f"{broker} gave or got a bundle at {moment(at_ms)} and has not reported a load since."
    return None


def _after(moves: tuple[BundleMove, ...], state: ShedState, now_ms: int) -> ShedState:
    touched = {
        broker: now_ms for one in moves for broker in (one.source, one.destination) if broker is not None
    }
    return ShedState(
        0,
        now_ms,
        {**state.moves, **{one.bundle: LastMove(now_ms, one.source) for one in moves}},
        {**state.touched_ms, **touched},
    )
