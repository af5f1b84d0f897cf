"""Which broker gets a bundle, by the load of brokers: any broker decides, from what it has read of the view.

Loads are reported at intervals. What was given to a broker since its last report counts with the mean load of a bundle,
so that many bundles at once, as after a broker's death, do not all go to the one that was least loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from anabranch.balance.core.assign import Candidate, Chosen, choose
from anabranch.balance.core.expected import expected_loads, given_since
from anabranch.balance.core.fold import Fold
from anabranch.balance.core.load import BrokerLoad
from anabranch.balance.core.owner_rules import OwnerRules, group_counts
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.states import BrokerRun
from anabranch.broker.balance.choosing import NOTHING_GIVEN, Choose, LeastBundles, OwnerChoice, owners_with
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.model.bundles import BundleName


class ChooseByLoad:
    """Implements `Choose`. While no load is known, numbers of bundles decide."""

    def __init__(
        self,
        registry: BrokerRegistry,
        fold: Callable[[], Fold],
        loads: Callable[[], Mapping[str, BrokerLoad]],
        settings: Callable[[], BalanceSettings],
        now_ms: Callable[[], int],
        below: Callable[[int], int],
        *,
        rules: Callable[[], OwnerRules] | None = None,
    ) -> None:
        """`below(n)` draws a number from 0 up to, without, n."""
        self._registry = registry
        self._fold = fold
        self._loads = loads
        self._settings = settings
        self._now_ms = now_ms
        self._below = below
        self._rules = rules
        self._without_loads: Choose = LeastBundles(registry, fold)
        # By broker, when it was given bundles since its last report.
        self._given_ms: dict[str, list[int]] = {}

    def __call__(
        self,
        bundle: BundleName,
        *,
        without: Collection[str] = (),
        given: Mapping[BundleName, BrokerRun] = NOTHING_GIVEN,
    ) -> OwnerChoice:
        reported = self._loads()
        if not reported:
            return self._by_numbers(bundle, without, given)
        self._given_ms = given_since(reported, self._given_ms)
        loads = expected_loads(reported, self._given_ms)
        living = self._registry.living()
        candidates = [
            Candidate(
                broker,
                loads.get(broker),
                found.version,
                found.is_draining,
                True,
                found.has_persistent_topics,
                found.has_non_persistent_topics,
            )
            for broker, found in living.items()
        ]
        refused = dict.fromkeys(without, "it is not asked for here") | self._bound(bundle, loads, given)
        found = choose(candidates, self._now_ms(), self._settings(), self._below, refused=refused)
        if not isinstance(found, Chosen):
            return OwnerChoice(None, found.because)
        self._given_ms.setdefault(found.broker, []).append(self._now_ms())
        return OwnerChoice(BrokerRun(found.broker, living[found.broker].run_id), found.because)

    def _by_numbers(
        self, bundle: BundleName, without: Collection[str], given: Mapping[BundleName, BrokerRun]
    ) -> OwnerChoice:
        bound = self._bound(bundle, {}, given)
        found = self._without_loads(bundle, without={*without, *bound}, given=given)
        if found.to is None and bound:
            return OwnerChoice(None, f"{found.reason}: {'; '.join(bound[one] for one in sorted(bound))}")
        return found

    def _bound(
        self, bundle: BundleName, loads: Mapping[str, BrokerLoad], given: Mapping[BundleName, BrokerRun]
    ) -> dict[str, str]:
        """The brokers that the bundle's policies exclude."""
        rules = None if self._rules is None else self._rules()
        if rules is None or rules.is_open:
            return {}
        owners = owners_with(self._fold(), given)
        # It is about to be elsewhere, and is not in its own way.
        owners.pop(str(bundle), None)
        shares: Mapping[str, float] = {broker: load.load for broker, load in loads.items()}
        return dict(rules.refused(str(bundle), shares, group_counts(owners, rules)))
