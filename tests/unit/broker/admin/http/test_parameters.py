"""What handlers are given of a request, and what is refused before they run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import pytest

from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.names import PathNames
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.openapi import described
from anabranch.broker.admin.http.parameters import From, bound
from anabranch.broker.admin.http.request import HttpRequest
from anabranch.broker.admin.http.routes import Routes
from anabranch.model.names import Domain, NamespaceName, TopicName
from unit.broker.admin.conftest import Rest

PATH = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/at/{number}"


async def nothing() -> MutableMapping[str, Any]:
    raise AssertionError("nobody reads the body")


async def given(rest: Rest, handler: Callable[..., Awaitable[Any]], query: bytes, **words: str) -> Any:
    routes = Routes("", needs=Needs.NOTHING, domain=Domain.PERSISTENT)
    routes.add("GET", PATH, handler)
    (route,) = routes
    scope = {"method": "GET", "path": "/", "query_string": query, "headers": []}
    request = HttpRequest(scope, nothing, rest.broker.admin_services())
    names = {"tenant": "acme", "namespace": "news", "topic": "a+b%3Ac", "number": "7"}
    request.names = PathNames(names | words, route.domain)
    request.role = "eve"
    return await bound(route)(request)


async def handler(
    topic: TopicName,
    namespace: NamespaceName,
    number: int,
    role: Annotated[str, From(lambda request: request.role)],
    force: bool = False,
    mode: Literal["A", "B"] = "A",
    most: Annotated[int, msgspec.Meta(ge=1, le=10)] = 5,
    names: Sequence[str] = (),
    bundle: str | None = None,
) -> dict[str, Any]:
    """Answers what it was given."""
    return {
        "topic": str(topic),
        "namespace": str(namespace),
        "number": number,
        "role": role,
        "query": (force, mode, most, list(names), bundle),
    }


async def test_names_come_decoded_and_the_query_as_what_the_types_say(rest: Rest) -> None:
    found = await given(rest, handler, b"force=true&mode=B&most=3&names=x&names=y+z&bundle=null&other=1")
    assert found == {
        "topic": "persistent://acme/news/a b:c",
        "namespace": "acme/news",
        "number": 7,
        "role": "eve",
        "query": (True, "B", 3, ["x", "y z"], "null"),
    }


async def test_what_a_query_leaves_out_is_the_default(rest: Rest) -> None:
    assert (await given(rest, handler, b""))["query"] == (False, "A", 5, [], None)


@pytest.mark.parametrize(
    ("text", "value"), [("yes", True), ("ON", True), ("1", True), ("t", True), ("no", False), ("Off", False)]
)
async def test_flags_are_read_from_the_usual_words(rest: Rest, text: str, value: bool) -> None:
    assert (await given(rest, handler, f"force={text}".encode()))["query"][0] is value


async def test_of_a_parameter_sent_twice_the_last_counts(rest: Rest) -> None:
    assert (await given(rest, handler, b"force=no&force=yes"))["query"][0] is True


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (b"force=maybe", "force"),
        (b"force=", "force"),
        (b"mode=C", "A, B"),
        (b"most=0", ">= 1"),
        (b"most=11", "<= 10"),
        (b"most=x", "most"),
    ],
)
async def test_what_does_not_fit_is_refused_by_name(rest: Rest, query: bytes, says: str) -> None:
    with pytest.raises(RestError, match="Invalid parameter") as caught:
        await given(rest, handler, query)
    assert caught.value.status == 400
    assert says in str(caught.value)


async def test_a_word_of_the_path_that_is_no_number_is_refused(rest: Rest) -> None:
    with pytest.raises(RestError, match="number"):
        await given(rest, handler, b"", number="seven")


async def test_a_parameter_without_a_default_must_be_sent(rest: Rest) -> None:
    async def wants(key: str) -> str:
        return key

    assert await given(rest, wants, b"key=") == ""
    with pytest.raises(RestError, match="key is missing"):
        await given(rest, wants, b"")


def test_the_description_says_what_the_types_say() -> None:
    routes = Routes("", tag="t")
    routes.add("GET", PATH, handler)
    operation = described(routes)["paths"][PATH]["get"]
    assert operation["description"] == "Answers what it was given."
    found = {one["name"]: one for one in operation["parameters"]}
    assert {name for name, one in found.items() if one["in"] == "path"} == {
        "tenant",
        "namespace",
        "topic",
        "number",
    }
    assert found["number"]["schema"] == {"type": "integer"}
    assert found["most"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 10, "default": 5}
    assert found["mode"]["schema"]["enum"] == ["A", "B"]
    assert not found["force"]["required"]
