"""Opens a log in an object store by its URL."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.model.position import Incarnation
from anabranch.storage.object.medium import ObjectMedium
from anabranch.storage.object.object_store import ObjectLogStore
from anabranch.storage.object.obstore_medium import open_medium
from anabranch.storage.object.policy import ObjectLogPolicy


def open_object_log(
    url: str,
    *,
    clock_ms: Callable[[], int],
    policy: ObjectLogPolicy | None = None,
    has_ended: Callable[[Incarnation], bool] = lambda _: False,
    is_sole: bool = False,
) -> tuple[ObjectMedium, ObjectLogStore]:
    """The medium of `s3://bucket/prefix?endpoint=…` or `objects:///folder`, and a new log in it, not started yet.

    `has_ended` and `is_sole`: see `ObjectLogStore`. MediumRefusedError if the URL names nothing that can be used;
    whether the store answers is found out when the log starts."""
    medium = open_medium(url)
    return medium, ObjectLogStore(
        medium, clock_ms=clock_ms, policy=policy, has_ended=has_ended, is_sole=is_sole, url=url
    )
