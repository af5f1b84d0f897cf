"""Every REST path and every binary command: without a token, with a wrong one, an expired one, and with a role that
has no right. Routes and commands are listed from the application and from the protocol, so that new ones are tried too.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.broker import Broker
from anabranch.broker.rest import create_app
from anabranch.wire import pulsar_pb2 as pb
from harness.guarded import START_S, C, Guarded, Wire, guarded, token

TOPIC = "persistent://acme/news/t"
NAMES = {
    "tenant": "acme",
    "namespace": "news",
    "topic": "t",
    "domain": "persistent",
    "subscription": "s",
    "cluster": "standalone",
    "role": "eve",
}
BAD_TOKENS = {
    "nonsense": "nonsense",
    "expired": token("root", lasts_s=-1),
    "of another issuer": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0.",
}


@pytest.fixture
async def acme() -> AsyncIterator[Guarded]:
    async with guarded() as made:
        await made.rest("boss", "PUT", "/admin/v2/persistent/acme/news/t", 204)
        await made.rest("boss", "PUT", "/admin/v2/persistent/acme/news/t/subscription/s", 204)
        schema = {"type": "STRING", "schema": "", "properties": {}}
        await made.rest("boss", "POST", "/admin/v2/schemas/acme/news/t/schema", 200, json=schema)
        await made.rest("boss", "PUT", "/admin/v2/scalable/acme/news/river", 204)
        yield made


async def state(broker: Broker) -> dict[str, bytes]:
    """All that is stored, and nobody may have changed."""
    found = {path: record.value for path, record in await broker.metadata.scan("/")}
    assert "/admin/namespaces/acme/news" in found
    return found


# -- REST


def requests(broker: Broker, **other: str) -> Iterator[tuple[str, str]]:
    """Every method of every path, with names of what exists, or other ones."""
    for route in create_app(broker.admin_services(), broker.page).table.routes:
        for path, _ in route.paths():
            yield route.method, example(path, other)


def example(path: str, other: Mapping[str, str]) -> str:
    is_scalable = "/scalable/" in path or "/ui/" in path
    names = {**NAMES, **({"topic": "river"} if is_scalable else {}), **other}
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: names.get(found[1], "1"), path)


def needs(acme: Guarded, method: str, path: str) -> Needs | None:
    """What the route needs that answers the request; None if none does."""
    found = acme.find_route(method, path)
    return None if found is None else found.route.needs


def is_public(acme: Guarded, method: str, path: str) -> bool:
    return needs(acme, method, path) is Needs.NOTHING


async def test_no_path_is_served_without_a_good_token(acme: Guarded) -> None:
    before = await state(acme.broker)
    tried = 0
    for method, path in requests(acme.broker):
        if is_public(acme, method, path):
            continue
        tried += 1
        headers: list[dict[str, str]] = [
            {},
            {"Authorization": "Basic cm9vdDpyb290"},
            {"X-Original-Principal": "root"},
        ]
        headers += [{"Authorization": f"Bearer {bad}"} for bad in BAD_TOKENS.values()]
        for shown in headers:
            answer = await acme.http.request(method, path, headers=shown, json=["produce"])
            assert answer.status_code == 401, f"{method} {path} {shown}: {answer.status_code} {answer.text}"
            assert method == "HEAD" or answer.json().keys() == {"reason"}
    assert tried > 100
    assert await state(acme.broker) == before


async def test_no_path_is_served_to_a_role_without_rights(acme: Guarded) -> None:
    before = await state(acme.broker)
    served: set[str] = set()
    for method, path in requests(acme.broker):
        for body in (["produce"], None):
            answer = await acme.rest("nobody", method, path, json=body)
            assert answer.status_code < 500, f"{method} {path}: {answer.text}"
            if answer.is_success or answer.is_redirect:
                served.add(path)
            elif answer.status_code != 403:
                # Routes that look into the body before they know what it is about.
                is_asking = needs(acme, method, path) in (Needs.ROUTE, Needs.NOTHING)
                assert is_asking or answer.status_code == 404, f"{method} {path}: {answer.status_code}"
    public = {path for method, path in requests(acme.broker) if is_public(acme, method, path)}
    described = {"/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}
    named = {path for method, path in requests(acme.broker) if needs(acme, method, path) is Needs.NAME}
    # Lists of what the role may see, the page's topics and brokers and open writes, which is nothing.
    lists = {"/ui/api/overview", "/ui/api/cluster", "/admin/v2/anabranch/writes"}
    assert served - public - described - named == lists
    assert (await acme.rest("nobody", "GET", "/ui/api/overview")).json()["topics"] == []
    cluster = (await acme.rest("nobody", "GET", "/ui/api/cluster")).json()
    assert not any(value for name, value in cluster.items() if name not in ("now", "kind"))
    assert (await acme.rest("nobody", "GET", "/admin/v2/anabranch/writes")).json() == []
    assert await state(acme.broker) == before


async def test_an_admin_of_one_tenant_is_nobody_in_another(acme: Guarded) -> None:
    await acme.rest("root", "PUT", "/admin/v2/persistent/public/default/t", 204)
    before = await state(acme.broker)
    tried = 0
    for method, path in requests(acme.broker, tenant="public", namespace="default"):
        if needs(acme, method, path) in (Needs.ROUTE, Needs.NOTHING, Needs.NAME):
            continue
        tried += 1
        answer = await acme.rest("boss", method, path, json=["produce"])
        assert answer.status_code in (403, 404, 405), f"{method} {path}: {answer.status_code} {answer.text}"
    assert tried > 100
    assert await state(acme.broker) == before


# Each of them would be another tenant's topic or namespace if it were decoded once more, or once less.
SPELLINGS = (
    "/admin/v2/persistent/acme%2F..%2Fpublic/default/t/stats",
    "/admin/v2/persistent/acme/..%2F..%2Fpublic%2Fdefault/t/stats",
    "/admin/v2/persistent/acme/news/..%2F..%2F..%2Fpublic%2Fdefault%2Ft/stats",
    "/admin/v2/persistent/acme/../public/default/t/stats",
    "/admin/v2/persistent/acme/news/%2e%2e/%2e%2e/public/default/t/stats",
    "/admin/v2/persistent/acme/news/persistent%3A%2F%2Fpublic%2Fdefault%2Ft/stats",
    "/admin/v2/namespaces/acme/news%252F..%252F..%252Fpublic%252Fdefault",
    "/admin/v2/namespaces/acme%00/news",
    "/admin/v2/namespaces/public/default?tenant=acme&namespace=news",
    "/admin/v2/scalable/acme/../public/default/t",
    "/admin/v2/scalable/acme/news/..%2F..%2Fpublic%2Fdefault%2Ft",
    "/lookup/v2/topic/persistent/acme/news%2F..%2F..%2Fpublic%2Fdefault/t",
    "/admin/v2/anabranch/ledgers/persistent/public/default/t",
)


async def test_no_spelling_of_a_path_leads_into_another_tenant(acme: Guarded) -> None:
    await acme.rest("root", "PUT", "/admin/v2/persistent/public/default/t", 204)
    before = await state(acme.broker)
    for method, path in itertools.product(("GET", "PUT", "POST", "DELETE"), SPELLINGS):
        answer = await acme.rest("boss", method, path, json=["produce"])
        assert 400 <= answer.status_code < 500, f"{method} {path}: {answer.status_code} {answer.text}"
    after = await state(acme.broker)
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    assert not [name for name in changed if "/acme/" not in name]


async def test_hidden_writes_are_decided_by_those_who_may_write(acme: Guarded) -> None:
    path = "/admin/v2/anabranch/writes/w/0"
    attempt = "0" * 31 + "1"
    before = await state(acme.broker)
    for method, tail, body in (
        ("PUT", "", {"winners": [], "topics": []}),
        ("PUT", "", {"winners": [], "topics": [], "target": TOPIC}),
        ("PUT", "", {"winners": [attempt], "topics": [TOPIC]}),
        ("POST", "/drop", {"attempts": [attempt]}),
        ("POST", "/drop", {"attempts": [attempt], "target": TOPIC}),
    ):
        await acme.rest("nobody", method, path + tail, 403, json=body)
    assert await state(acme.broker) == before
    await acme.rest("boss", "PUT", path, 200, json={"winners": [], "topics": [], "target": TOPIC})


async def test_topics_of_several_grants_are_asked_for_one_by_one(acme: Guarded) -> None:
    for verb in ("grant", "revoke"):
        body = [{"topic": TOPIC, "role": "nobody", "actions": ["produce"]}]
        await acme.rest("nobody", "POST", f"/admin/v2/namespaces/{verb}PermissionsOnTopics", 403, json=body)


# -- the binary protocol

COMMANDS = [value for value in C.Type.values() if value not in (C.CONNECT, C.PING, C.PONG)]


CLOSING = (C.CLOSE_PRODUCER, C.CLOSE_CONSUMER, C.WATCH_TOPIC_LIST_CLOSE)
# Those that are answered though they have no id of a request.
ANSWERED = (C.SCALABLE_TOPIC_LOOKUP, C.WATCH_SCALABLE_TOPICS, C.WATCH_TC_ASSIGNMENTS)


def filled(kind: int, *, is_full: bool = False) -> pb.BaseCommand:
    """A command with a value in every field that must have one, or in every field that can."""
    command = C(type=kind)  # type: ignore[arg-type]
    field = next((f for f in C.DESCRIPTOR.fields if f.number == kind), None)
    if field is None or field.message_type is None:
        # A few fields are numbered otherwise than their commands.
        wanted = C.Type.Name(kind).replace("_", "").lower()
        field = next(
            f for f in C.DESCRIPTOR.fields if f.message_type and f.name.replace("_", "").lower() == wanted
        )
    _fill(getattr(command, field.name), is_full, 0)
    return command


def _fill(message: Message, is_full: bool, depth: int) -> None:
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        is_wanted = is_full or field.is_required or field.name in ("topic", "namespace", "request_id")
        if field.is_repeated or not is_wanted:
            continue
        if field.message_type is None:
            setattr(message, field.name, _value(field))
        elif depth < 3:
            _fill(getattr(message, field.name), is_full, depth + 1)


async def answers_to(wire: Wire, command: pb.BaseCommand) -> list[pb.BaseCommand]:
    """All that comes of it. Requests run on their own: the next PONG may overtake their answers."""
    wire.send_command(command)
    body = next(value for field, value in command.ListFields() if field.message_type is not None)
    found: list[pb.BaseCommand] = []
    if "request_id" in body.DESCRIPTOR.fields_by_name or command.type in ANSWERED:
        answer = await wire.receive()
        if answer is None:
            return []
        found.append(answer)
    return [*found, *(await wire.settle() or ())]


def _value(field: Any) -> Any:
    if "topic" in field.name and field.type == FieldDescriptor.TYPE_STRING:
        return TOPIC
    if field.name == "namespace":
        return "acme/news"
    if field.enum_type is not None:
        # Not the first, which often means that there is none.
        return field.enum_type.values[min(1, len(field.enum_type.values) - 1)].number
    return {
        FieldDescriptor.TYPE_STRING: "s",
        FieldDescriptor.TYPE_BYTES: b"",
        FieldDescriptor.TYPE_BOOL: True,
        FieldDescriptor.TYPE_DOUBLE: 1.0,
    }.get(field.type, 1)


def is_error(answer: pb.BaseCommand) -> bool:
    if answer.type in (C.ERROR, C.SEND_ERROR):
        return True
    for field, body in answer.ListFields():
        if field.message_type is not None:
            for name in ("error", "error_code"):
                if name in body.DESCRIPTOR.fields_by_name and body.HasField(name):
                    return True
    return False


async def test_no_command_is_served_before_connect(acme: Guarded) -> None:
    before = await state(acme.broker)
    for kind in COMMANDS:
        wire: Wire = await acme.open()
        try:
            wire.send_command(filled(kind, is_full=True))
            while (answer := await wire.receive()) is not None:
                assert is_error(answer), answer
        finally:
            await wire.close()
    assert await state(acme.broker) == before


@pytest.mark.parametrize("proof", [None, *BAD_TOKENS.values()], ids=["none", *BAD_TOKENS])
async def test_nobody_is_connected_without_a_good_token(acme: Guarded, proof: str | None) -> None:
    before = await state(acme.broker)
    for method in ("token", "none", "tls", "basic", "athenz", "anabranch-peer", ""):
        async with acme.wire(proof, method) as (wire, answer):
            assert answer is not None
            assert answer.error.error == pb.AuthenticationError
            for kind in COMMANDS:
                wire.send_command(filled(kind))
            assert await wire.receive() is None
    assert await state(acme.broker) == before


async def test_no_command_is_served_to_a_role_without_rights(acme: Guarded) -> None:
    before = await state(acme.broker)
    for kind, is_full in itertools.product(COMMANDS, (False, True)):
        async with acme.as_role("nobody") as wire:
            answers = await answers_to(wire, filled(kind, is_full=is_full))
        for answer in answers:
            # What was never opened can be closed.
            is_closing = kind in CLOSING and answer.type == C.SUCCESS
            assert is_closing or is_error(answer), answer
    assert await state(acme.broker) == before


async def test_the_commands_tried_are_served_to_a_role_that_has_the_right(acme: Guarded) -> None:
    """They would prove nothing if they were refused to everybody."""
    served = set()
    for kind in COMMANDS:
        async with acme.as_role("boss") as wire:
            if any(not is_error(answer) for answer in await answers_to(wire, filled(kind))):
                served.add(kind)
    named = {C.Type.Name(kind) for kind in served}
    assert named >= {
        "PRODUCER",
        "SUBSCRIBE",
        "LOOKUP",
        "PARTITIONED_METADATA",
        "GET_TOPICS_OF_NAMESPACE",
        "GET_SCHEMA",
        "GET_OR_CREATE_SCHEMA",
        "SCALABLE_TOPIC_LOOKUP",
        "SCALABLE_TOPIC_SUBSCRIBE",
        "WATCH_SCALABLE_TOPICS",
        "WATCH_TOPIC_LIST",
    }
    # Brokers exchange these, and no role of a client has a right to them.
    assert not named & {"ANABRANCH_PEER", "ANABRANCH_PEER_RESPONSE"}


async def test_good_and_bad_proofs_are_counted_and_nothing_of_what_was_shown(acme: Guarded) -> None:
    shown = [*BAD_TOKENS.values(), token("root"), token("root", lasts_s=3600)]
    for proof in shown:
        async with acme.wire(proof):
            pass
    async with acme.wire("made up", method='no"such\nmethod'):
        pass
    metrics = (await acme.http.get("/metrics")).text
    of_tokens = 'cluster="standalone",provider_name="AuthenticationProviderToken",auth_method="token"'
    unknown = 'cluster="standalone",provider_name="AuthenticationService",auth_method="unknown"'
    for line in (
        f'pulsar_authentication_failures_total{{{of_tokens},reason="INVALID_TOKEN"}} 3',
        f'pulsar_authentication_failures_total{{{unknown},reason="INVALID_AUTH_DATA"}} 1',
        'pulsar_expired_token_total{cluster="standalone"} 1',
        'pulsar_expiring_token_minutes_bucket{cluster="standalone",le="60"} 1',
    ):
        assert line in metrics.splitlines()
    assert f"pulsar_authentication_success_total{{{of_tokens}}}" in metrics
    assert "such" not in metrics


async def test_a_token_that_expires_on_a_connection_ends_it(acme: Guarded) -> None:
    async with (
        guarded(authentication_refresh_check_seconds=0.05) as made,
        made.wire(token("root", lasts_s=60), feature_flags=pb.FeatureFlags(supports_auth_refresh=True)) as (
            wire,
            answer,
        ),
    ):
        assert answer is not None
        assert answer.type == C.CONNECTED
        made.clock.now_s = START_S + 61
        challenge = await wire.receive()
        assert challenge is not None
        assert challenge.type == C.AUTH_CHALLENGE
        shown = pb.AuthData(auth_method_name="token", auth_data=token("root", lasts_s=60).encode())
        wire.send(C.AUTH_RESPONSE, "authResponse", client_version="peer", response=shown)
        refusal = await wire.receive()
        assert refusal is not None
        assert refusal.error.error == pb.AuthenticationError
        assert await wire.receive() is None


async def test_a_client_that_does_not_answer_a_challenge_is_ended() -> None:
    async with guarded(authentication_refresh_check_seconds=0.05) as made:
        for features in (pb.FeatureFlags(supports_auth_refresh=True), pb.FeatureFlags()):
            made.clock.now_s = START_S
            async with made.wire(token("root", lasts_s=60), feature_flags=features) as (wire, _):
                made.clock.now_s = START_S + 61
                if features.supports_auth_refresh:
                    challenge = await wire.receive()
                    assert challenge is not None
                    assert challenge.type == C.AUTH_CHALLENGE
                    made.clock.now_s += 1
                refusal = await wire.receive()
                assert refusal is not None
                assert "expired" in refusal.error.message
                assert await wire.receive() is None
