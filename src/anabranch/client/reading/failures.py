"""Why the log could not be read without its broker."""

from __future__ import annotations

from anabranch.errors import AnabranchError
from anabranch.model.position import Position
from anabranch.storage.core.read_plan import TopicPlan, position_text


class DirectReadError(AnabranchError):
    """The files or objects could not be read as planned."""


class PlanOutdatedError(DirectReadError):
    """A file or object of the plan is gone: it was rewritten or all its entries were deleted. Plan again."""

    retryable = True

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is gone: plan again")
        self.path = path


class FilesUnreachableError(DirectReadError):
    """The log's folder, or its object store, cannot be read from here: read through the broker."""


class NeedsClientError(DirectReadError):
    """Only a client can read this entry: it is encrypted, or a chunk of a message. All earlier entries were
    returned."""

    def __init__(self, position: Position, why: str) -> None:
        super().__init__(f"entry {position_text(position)} {why}: read from there on through the broker")
        self.position = position


class DataLostError(DirectReadError):
    """Requested entries have been trimmed."""

    def __init__(self, plan: TopicPlan) -> None:
        first = (
            f"the first left is {plan.runs[0].ledger}:{plan.runs[0].first}" if plan.runs else "none is left"
        )
        super().__init__(
            f"{plan.topic}: entries from {position_text(plan.start)} on are gone, {first}; a subscription keeps "
            "what is still to be read"
        )
