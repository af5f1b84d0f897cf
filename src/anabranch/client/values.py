"""The type of the values that a producer sends, or a consumer receives: the schema's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # `Producer` alone means `Producer[Any]`. Only type checkers need the default, which Python has from 3.13 on.
    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    V = TypeVar("V")
