"""Rate limits as token buckets of messages and bytes that fill with time. Pure; the caller passes the time.

Messages are charged after they have passed, so a bucket may go into debt; later ones wait until the debt is paid. A
bucket holds at most one period's tokens: idle time saves up no more.
"""

from __future__ import annotations

from anabranch.broker.policy.rate_json import DispatchRate, PublishRate


class Pace:
    """`messages` and `size` may pass in each `period_s`; 0 or less is no limit."""

    __slots__ = ("_asked", "_at", "_filled", "_period_s", "_rates", "is_relative")

    def __init__(self, messages: int, size: int, period_s: float = 1.0, *, now: float) -> None:
        self._asked = (messages, size)
        self._rates: tuple[float, float] = self._asked
        self.is_relative = False
        self._period_s = period_s
        self._filled = [float(messages), float(size)]
        self._at = now

    @classmethod
    def of(cls, rate: PublishRate | DispatchRate, now: float) -> Pace:
        period_s = float(rate.seconds) if isinstance(rate, DispatchRate) else 1.0
        made = cls(rate.messages, rate.bytes, period_s, now=now)
        made.is_relative = isinstance(rate, DispatchRate) and rate.is_relative
        return made

    def follow(self, per_second: tuple[float, float]) -> None:
        """Adds that many messages and bytes a second to the limit, until the next call (relative dispatch rates)."""
        messages, size = self._asked
        self._rates = (
            messages + per_second[0] * self._period_s if messages > 0 else messages,
            size + per_second[1] * self._period_s if size > 0 else size,
        )

    def spend(self, messages: int, size: int, now: float) -> None:
        self._fill(now)
        self._filled[0] -= messages
        self._filled[1] -= size

    def wait_s(self, now: float) -> float:
        """How long until something may pass; 0 if it may at once."""
        self._fill(now)
        waits = [
            # A whole message, or byte, must be available: at exactly zero nothing may pass.
            (1.0 - filled) * self._period_s / rate
            for rate, filled in zip(self._rates, self._filled, strict=True)
            if rate > 0 and filled < 1.0
        ]
        return max(waits, default=0.0)

    def messages_left(self, now: float) -> int | None:
        """How many messages may pass now; None for any number."""
        self._fill(now)
        return max(0, int(self._filled[0])) if self._rates[0] > 0 else None

    def _fill(self, now: float) -> None:
        passed, self._at = max(0.0, now - self._at), max(now, self._at)
        for n, rate in enumerate(self._rates):
            if rate > 0:
                self._filled[n] = min(float(rate), self._filled[n] + passed * rate / self._period_s)
