"""The changes of bundles of the last hour, as this broker has read them from the channel: what people ask about after
something has moved. The channel itself keeps the last change of each bundle alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from anabranch.balance.core.states import BundleChange
from anabranch.model.bundles import BundleName

KEPT_MS: Final = 3_600_000
# A start of many brokers with many bundles is remembered in part.
CHANGES_MAX: Final = 5000


class BundleHistory:
    def __init__(self, now_ms: Callable[[], int], *, changes_max: int = CHANGES_MAX) -> None:
        self._now_ms = now_ms
        self._changes_max = changes_max
        # By bundle, version and time: the time at which this broker has read it, and the change. The oldest first.
        self._read: OrderedDict[tuple[BundleName, int, int], tuple[int, BundleChange]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._read)

    def read(self, changes: Sequence[BundleChange]) -> None:
        """Keeps changes that were read now. One that was read before, and is read again, is kept once."""
        now_ms = self._now_ms()
        for change in changes:
            key = (change.bundle, change.version, change.at_ms)
            if change.at_ms >= now_ms - KEPT_MS and key not in self._read:
                self._read[key] = (now_ms, change)
        self._forget(now_ms)

    def since(self, read_ms: int) -> list[BundleChange]:
        """All changes of the bundles of which one was read after that time."""
        self._forget(self._now_ms())
        changed = {change.bundle for at_ms, change in self._read.values() if at_ms > read_ms}
        return self._some(lambda bundle: bundle in changed)

    def of(self, bundle: BundleName) -> list[BundleChange]:
        return self._some(lambda one: one == bundle)

    def _some(self, is_meant: Callable[[BundleName], bool]) -> list[BundleChange]:
        return [change for _, change in self._read.values() if is_meant(change.bundle)]

    def _forget(self, now_ms: int) -> None:
        while self._read:
            oldest_ms, _ = next(iter(self._read.values()))
            if len(self._read) <= self._changes_max and oldest_ms >= now_ms - KEPT_MS:
                return
            self._read.popitem(last=False)
