"""What a task does when messages that it was to read are gone: it fails, or continues without them as the user
wants."""

from __future__ import annotations

import logging

from anabranch.errors import AnabranchError
from anabranch.model.cut import MessagePosition
from anabranch.spark.plan.task import Task

log = logging.getLogger(__name__)


def lost(task: Task, position: MessagePosition | None) -> None:
    """Messages from there on are gone. Raises, unless the user wants to continue with the remaining ones."""
    failed(task, task.loss(position))


def failed(task: Task, error: AnabranchError) -> None:
    """Raises, unless the user wants to continue without the lost messages."""
    if task.fail_on_data_loss:
        raise error
    log.warning("%s", error)
