"""The result of `client.producer(…)` and similar calls: opened by `await`, or opened and closed by `async with`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar


class OpenedPart(Protocol):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


T = TypeVar("T", bound=OpenedPart)


class Opening(Generic[T]):
    """`p = await client.producer(…)`, or `async with client.producer(…) as p:`. Opens nothing until then."""

    def __init__(self, open_: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._open = open_
        self._opened: list[T] = []

    if not TYPE_CHECKING:  # Type checkers would believe that it has every attribute.

        def __getattr__(self, name: str) -> Any:
            # A program that forgot to open the part calls one of its methods. Copying asks for names with underscores.
            if name.startswith("_"):
                raise AttributeError(name)
            raise AttributeError(
                f"{name!r} of a part that is not open: open it first, with `await` or `async with`; "
                "`anabranch.blocking` needs neither"
            )

    def __await__(self) -> Generator[Any, Any, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened.append(await self._open())
        return self._opened[-1]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.pop().__aexit__(kind, error, trace)
