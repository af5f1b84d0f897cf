"""Callbacks from a part to its owner, which the part must not keep in memory.

An owner holds its parts. If these held the owner in turn, neither would be freed when it is no longer used, but when
the collector looks at everything: it stops all topics of a broker meanwhile, for a tenth of a second where a thousand
are open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec
from weakref import WeakMethod

P = ParamSpec("P")


def weakly(method: Callable[P, None]) -> Callable[P, None]:
    """Calls that bound method for as long as its object lives. After that there is no one to be told, and a call does
    nothing."""
    held = WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        if (found := held()) is not None:
            found(*args, **kwargs)

    return call
