"""Tables of routes. A route is a method, a path, the right that it needs and the function that answers; the rest of a
row describes it.

    routes = Routes("/admin/v2/clusters", tag="clusters")

    @routes.get("/{cluster}", needs=Needs.NAME)
    async def get_cluster(services: AdminServices, cluster: str) -> dict[str, Any]: ...

`{name}` stands for one word of a path and `{name:path}` for any number of them. `parameters.py` says which parameters a
function may have. Declaring a route costs next to nothing: parameters are inspected at the first request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from anabranch.broker.admin.http.needs import Needs
from anabranch.model.names import Domain

# The path of a scalable topic in Pulsar's own routes of such topics: its name may hold slashes.
SCALABLE_TOPIC: Final = "/{tenant}/{namespace}/{topic:path}"

Handler = Callable[..., Awaitable[Any]]
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Route:
    method: str
    path: str
    needs: Needs
    # Called with the values of its parameters. It returns an answer, or a value to answer as JSON; None for no body.
    handler: Handler
    # The status if the handler does not return an answer.
    status: int = 200
    is_text: bool = False
    # The domain of the topic that the path names; None if it is in the path, as `{domain}`.
    domain: Domain | None = None
    # The words that one name of the path may have, each like a route of its own; and that name.
    words: Sequence[str] = ()
    word_name: str = ""
    # For the description: the types of the body and of the answer, if the handler does not return that type, and of a
    # parameter that may be sent instead of the body.
    body: Any = None
    answers: Any = None
    parameter: str | None = None
    tag: str = ""
    name: str = ""
    summary: str = ""
    is_described: bool = True
    # Answered by what was last read while the metadata store is in doubt; others are refused then.
    is_served_in_doubt: bool = False

    def paths(self) -> Iterator[tuple[str, str]]:
        """Each path with its word in it, and that word."""
        for word in self.words or ("",):
            yield self.path.replace("{" + self.word_name + "}", word) if word else self.path, word


class Routes:
    """Routes below one path. The first that matches answers."""

    def __init__(
        self,
        prefix: str,
        *,
        tag: str = "",
        needs: Needs = Needs.SUPER_USER,
        domain: Domain | None = None,
        is_described: bool = True,
    ) -> None:
        self._prefix = prefix
        self._tag = tag
        self._needs = needs
        self._domain = domain
        self._is_described = is_described
        self._routes: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def add(self, method: str, path: str, handler: Handler, **options: Any) -> None:
        """Adds a route. Options are fields of `Route`, which override those of the table."""
        given = {
            "needs": self._needs,
            "name": handler.__name__,
            "is_described": self._is_described,
            **options,
        }
        path, domain, tag = self._prefix + path, self._domain, self._tag
        self._routes.append(Route(method=method, path=path, handler=handler, domain=domain, tag=tag, **given))

    def _declare(self, method: str, path: str, options: dict[str, Any]) -> Callable[[H], H]:
        def declared(handler: H) -> H:
            self.add(method, path, handler, **options)
            return handler

        return declared

    def get(self, path: str = "", **options: Any) -> Callable[[H], H]:
        return self._declare("GET", path, options)

    def put(self, path: str = "", **options: Any) -> Callable[[H], H]:
        return self._declare("PUT", path, options)

    def post(self, path: str = "", **options: Any) -> Callable[[H], H]:
        return self._declare("POST", path, options)

    def delete(self, path: str = "", **options: Any) -> Callable[[H], H]:
        return self._declare("DELETE", path, options)


def scalable_routes(needs: Needs = Needs.TENANT_ADMIN) -> tuple[Routes, Routes]:
    """Two tables for the same routes below the path of one scalable topic: beside Pulsar's own routes of such topics,
    and where its admin client sends what it sends for classic ones. Slashes in the name are encoded."""
    words = "/{tenant}/{namespace}/{topic}"
    return (
        Routes(f"/admin/v2/scalable{words}", tag="scalable topics", needs=needs, domain=Domain.TOPIC),
        Routes(
            f"/admin/v2/topic{words}",
            tag="scalable topics",
            needs=needs,
            domain=Domain.TOPIC,
            is_described=False,
        ),
    )


def topic_routes(domain: Domain, needs: Needs = Needs.TENANT_ADMIN) -> Routes:
    """A table for routes below the path of one classic topic."""
    tag = "topics" if domain is Domain.PERSISTENT else "non-persistent topics"
    path = f"/admin/v2/{domain.value}/{{tenant}}/{{namespace}}/{{topic}}"
    return Routes(path, tag=tag, needs=needs, domain=domain)
