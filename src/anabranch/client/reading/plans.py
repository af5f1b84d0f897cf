"""Asks a topic's owner for read plans, over its admin REST. Blocking, for readers that wait for their data anyway.

    planner = Planner("http://localhost:8080", "persistent://public/default/orders")
    for piece in record_batches(planner, start, end): …                # anabranch.client.reading.direct

A `Planner` holds no connection and can be pickled: it is made where a job is planned and used where it runs. It waits
for a broker that restarts, or for the next owner of the topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlencode

from anabranch.client.security import NOBODY, Security
from anabranch.client.transport.rest import NotAnswered, call, topic_path
from anabranch.errors import AnabranchError
from anabranch.model.position import Position
from anabranch.storage.core.read_plan import TopicPlan, decode, position_text

PATH = "/admin/v2/anabranch/read-plan"
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 2.0


class PlanRefusedError(AnabranchError):
    """The broker refuses this reader a plan of that topic: read through the broker."""


class NoPlanError(AnabranchError):
    """The broker did not answer, or could not plan at the moment. Asking again may help."""

    retryable = True


@dataclass(frozen=True, slots=True)
class Planner:
    admin_url: str
    topic: str  # A persistent topic, a partition, or a segment.
    security: Security = NOBODY
    timeout_s: float = 30.0
    # How long to keep asking while no answer comes.
    retry_s: float = 30.0
    # The id of the topic, or of the topic that a segment belongs to; "" if it is unknown.
    topic_id: str = ""
    # Whether objects are to be read by URLs that need no credentials, where their store has such.
    signed: bool = False
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __call__(
        self, start: Position | None = None, end: Position | None = None, bytes_max: int | None = None
    ) -> TopicPlan:
        """The plan from `start` (None: the first entry kept) to before `end` (None: the confirmed end)."""
        named = {
            "start": start and position_text(start),
            "end": end and position_text(end),
            "maxBytes": bytes_max,
            "topicId": self.topic_id or None,
            "signed": "true" if self.signed else None,
        }
        query = urlencode({name: value for name, value in named.items() if value is not None})
        url = f"{self.admin_url.rstrip('/')}{PATH}/{topic_path(self.topic)}?{query}"
        deadline, pause = self.clock() + self.retry_s, PAUSE_MIN_S
        while True:
            try:
                return self._checked(decode(self._get(url)))
            except NoPlanError:
                if self.clock() + pause > deadline:
                    raise
            self.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)

    def _checked(self, plan: TopicPlan) -> TopicPlan:
        """The plan, if it can be read without credentials where that was asked for: those of this process go to no
        store that a broker names."""
        if self.signed and plan.files and not plan.urls and plan.root.startswith("s3:"):
            raise PlanRefusedError(
                f"the broker has signed no URLs for the objects of {self.topic}; with credentials of your own, "
                "objectAccess=own reads them"
            )
        return plan

    def _get(self, url: str) -> bytes:
        try:
            answer = call("GET", url, security=self.security, timeout_s=self.timeout_s)
        except NotAnswered as error:
            raise NoPlanError(f"no read plan of {self.topic} from {self.admin_url}: {error}") from error
        if answer.status < 300:
            return answer.body
        kind = PlanRefusedError if answer.status in (400, 401, 403, 404, 405, 412) else NoPlanError
        raise kind(f"no read plan of {self.topic}: {answer.reason or answer.status}")
