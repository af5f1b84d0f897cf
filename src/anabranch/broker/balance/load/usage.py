"""How much this broker uses of what it can have: shares, 1.0 for a resource in full use.

A broker has one core, since its event loop is one thread; the bytes that its clients send and receive are its share of
the network, whatever other processes of the machine do. A resource whose limit is not known counts as unused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.runtime.machine import memory_bytes_max, network_bytes_per_s, resident_bytes
from anabranch.model.histogram import Histogram

_BYTES_PER_GIGABIT: Final = 125_000_000
# Any disk moves as much as this. A faster one is known as such once it has shown its speed.
DISK_BYTES_PER_S_MIN: Final = 100_000_000.0
# How often the machine's interfaces are asked for their speed.
NETWORK_AGAIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ResourceShares:
    cpu: float = 0.0
    memory: float = 0.0
    # Published and not yet on disk, of `maxPendingPublishBytes`.
    pending: float = 0.0
    network_in: float = 0.0
    network_out: float = 0.0
    disk: float = 0.0


class LogFigures(Protocol):
    """The broker's log; `LogStore` has more."""

    def stats(self) -> Mapping[str, float]: ...

    def histograms(self) -> Mapping[str, Histogram]: ...


class ResourceMeter:
    """`look` is to be called at intervals."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        loop_share: Callable[[], float],
        log_figures: LogFigures,
        clock: Callable[[], float],
        *,
        memory_used: Callable[[], int] = resident_bytes,
        memory_max: Callable[[], int] = memory_bytes_max,
        network: Callable[[tuple[str, ...]], float | None] = network_bytes_per_s,
    ) -> None:
        """`loop_share` is the share of a core that the event loop's thread has used of late."""
        self._config = config
        self._loop_share = loop_share
        self._log = log_figures
        self._clock = clock
        self._memory_used = memory_used
        self._memory_max = memory_max()
        self._network = network
        self._network_asked_s: float | None = None
        self._network_bytes: float | None = None
        self._disk_best = DISK_BYTES_PER_S_MIN
        self._disk_at = (clock(), *self._disk_figures())

    def look(self, bytes_in: float, bytes_out: float) -> ResourceShares:
        """The present shares; the bytes are those that clients sent and got, a second."""
        limit = self._network_limit()
        config = self._config()
        pending = self._log.stats().get("unconfirmed_bytes", 0.0)
        return ResourceShares(
            self._loop_share(),
            _share(self._memory_used(), self._memory_max),
            _share(pending, config.max_pending_publish_bytes),
            _share(bytes_in, limit),
            _share(bytes_out, limit),
            self._disk(),
        )

    def _network_limit(self) -> float | None:
        config, now = self._config(), self._clock()
        if config.load_balancer_override_broker_nic_speed_gbps:
            return config.load_balancer_override_broker_nic_speed_gbps * _BYTES_PER_GIGABIT
        if self._network_asked_s is None or now - self._network_asked_s >= NETWORK_AGAIN_S:
            self._network_asked_s = now
            self._network_bytes = self._network(config.load_balancer_override_broker_nics)
        return self._network_bytes

    def _disk(self) -> float:
        """The bytes that the log wrote since the last look, of the most that its disk has shown it can write.

        Not the share of time in which a write is under way: that is near 1 also for small writes, which grow instead of
        queueing when there is more to write."""
        before, now = self._disk_at, (self._clock(), *self._disk_figures())
        self._disk_at = now
        seconds, written, busy_s = (new - old for new, old in zip(now, before, strict=True))
        if seconds <= 0:
            return 0.0
        if busy_s > 0:
            self._disk_best = max(self._disk_best, written / busy_s)
        return _share(written / seconds, self._disk_best)

    def _disk_figures(self) -> tuple[float, float]:
        """Bytes written, and seconds spent on writing them, since the start."""
        sync = self._log.histograms().get("sync")
        return self._log.stats().get("confirmed_bytes", 0.0), 0.0 if sync is None else sync.sum


def _share(used: float, limit: float | None) -> float:
    return min(1.0, max(0.0, used / limit)) if limit else 0.0
