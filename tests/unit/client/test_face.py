"""The public face: every name can be imported, is typed and documented, and costs a broker nothing."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch import AnabranchError
from anabranch.client import errors
from unit.client.scripted import ScriptedBroker

ROOT = Path(anabranch.__file__).parents[2]
BIN = str(Path(sys.executable).parent)


@pytest.mark.parametrize("name", anabranch.__all__)
def test_every_public_name_can_be_imported_and_says_what_it_is(name: str) -> None:
    found = getattr(anabranch, name)
    assert found.__name__ == name
    assert found.__doc__
    assert name in dir(anabranch)


def test_the_blocking_face_needs_no_import_of_its_own() -> None:
    program = "import anabranch; print(anabranch.blocking.connect.__name__)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "connect"


def test_the_functions_that_need_no_client_are_on_both_faces() -> None:
    assert anabranch.blocking.merge_checkpoints is anabranch.merge_checkpoints


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        anabranch.conect  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_loads_no_client() -> None:
    program = "import sys, anabranch; print([name for name in sys.modules if name.startswith('anabranch.')])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_using_the_client_loads_no_optional_package() -> None:
    program = (
        "import sys, anabranch; [getattr(anabranch, name) for name in anabranch.__all__]; "
        "print([name for name in ('cryptography', 'fastavro', 'numba', 'opentelemetry', 'pyarrow', 'pydantic') "
        "if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_every_public_name_is_a_real_name_to_type_checkers() -> None:
    """What `__getattr__` finds when the program runs, a type checker finds in the imports that only it sees."""
    source = (ROOT / "src" / "anabranch" / "__init__.py").read_text(encoding="utf-8")
    assert [name for name in anabranch.__all__ if f" import {name} as {name}\n" not in source] == []


def test_the_program_for_type_checkers_uses_every_public_name() -> None:
    source = (Path(__file__).parent / "whole_surface.py").read_text(encoding="utf-8")
    assert [name for name in anabranch.__all__ if f"anabranch.{name}" not in source] == []


@pytest.mark.parametrize(
    ("service_url", "options", "says"),
    [
        ("localhost:6650", {}, "give pulsar://host:port"),
        ("pulsar://", {}, "give pulsar://host:port"),
        ("pulsar://one:6650,", {}, "give pulsar://host:port"),
        ("pulsar://one:port", {}, "give pulsar://host:port"),
        (6650, {}, "give text"),
        (
            "pulsar://one",
            {"operation_timeout_s": 0},
            "operation_timeout_s=0: give a number of seconds above 0",
        ),
        ("pulsar://one", {"operation_timeout_s": "3"}, "operation_timeout_s='3'"),
        ("pulsar://one", {"when_full": "panic"}, "when_full='panic': choose 'wait' or 'refuse'"),
        ("pulsar://one", {"memory_bytes_max": 0}, "memory_bytes_max"),
        ("pulsar://one", {"tracing": True}, "tracing=True: give anabranch.OpenTelemetry"),
    ],
)
def test_connecting_with_what_cannot_be_meant_says_what_can(
    service_url: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(anabranch.BadArgument, match=re.escape(says)):
        anabranch.connect(service_url, **options)


@pytest.mark.parametrize(
    "service_url",
    ["pulsar://one", "pulsar+ssl://one:6651", "pulsar://one:6650, two:6651", "pulsar://[::1]:6650"],
)
def test_service_urls_may_name_several_brokers(service_url: str) -> None:
    assert isinstance(anabranch.connect(service_url), anabranch.Client)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compression": "brotli"}, "compression='brotli': choose one of none, lz4"),
        ({"access": "mine"}, "access='mine': choose one of shared"),
        ({"send_timeout_s": -1}, "send_timeout_s=-1: give a number of seconds above 0"),
        ({"schema": int}, "schema=<class 'int'>: give bytes, str, a dataclass"),
    ],
)
def test_a_producer_with_what_cannot_be_meant_is_refused_before_connecting(
    options: dict[str, Any], says: str
) -> None:
    client = anabranch.connect("pulsar://nowhere.invalid")
    with pytest.raises(anabranch.BadArgument, match=re.escape(says)):
        client.producer("t", **options)


@pytest.mark.parametrize("kind", ["stream_consumer", "queue_consumer"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscription": "s"}, "give a topic or a namespace"),
        ({"topic": "t", "namespace": "public/default", "subscription": "s"}, "not both"),
        ({"topic": "t"}, "subscription is missing"),
        ({"topic": "t", "subscription": "s", "start": "middle"}, "give 'latest' or 'earliest'"),
        ({"topic": "t", "subscription": "s", "schema": int}, "schema=<class 'int'>"),
        ({"topic": "t", "subscription": "s", "property_filters": {"a": "b"}}, "give namespace="),
        ({"topic": "t", "subscription": "s", "receive_queue": 0}, "receive_queue=0"),
    ],
)
def test_a_consumer_with_what_cannot_be_meant_is_refused_before_connecting(
    kind: str, options: dict[str, Any], says: str
) -> None:
    client = anabranch.connect("pulsar://nowhere.invalid")
    with pytest.raises(anabranch.BadArgument, match=re.escape(says)):
        getattr(client, kind)(**options)


@pytest.mark.parametrize(
    ("package", "use", "extra"),
    [
        ("fastavro", "AvroSchema(definition='\"long\"')", "avro"),
        ("cryptography", "Encryption(public_keys={'k': 'k.pem'})", "encryption"),
        ("opentelemetry", "OpenTelemetry()", "tracing"),
    ],
)
def test_what_needs_a_package_that_is_missing_says_how_to_install_it(
    package: str, use: str, extra: str
) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "import anabranch\n"
        f"try: anabranch.{use}\n"
        "except anabranch.Unsupported as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"pip install anabranch[{extra}]" in ran.stdout


TOPIC = "topic://public/default/t"


async def test_closing_a_client_closes_all_it_made_and_tells_what_was_not_stored(
    script: ScriptedBroker, client: anabranch.Client
) -> None:
    script.receipts = False
    script.assigned = (0, [0])
    producer = await client.producer(TOPIC, send_timeout_s=0.05)
    stream = await client.stream_consumer(TOPIC, "s")
    lost = await producer.post(b"x")
    with pytest.raises(anabranch.TimedOut):
        await client.close()
    with pytest.raises(anabranch.TimedOut):
        await lost
    with pytest.raises(anabranch.Closed):
        await stream.receive()
    with pytest.raises(anabranch.Closed):
        await producer.send(b"x")
    with pytest.raises(anabranch.Closed, match="make another"):
        await client.producer(TOPIC)


async def test_a_client_that_is_left_by_an_error_waits_for_no_receipt(script: ScriptedBroker) -> None:
    script.receipts = False

    async def leave() -> None:
        async with anabranch.connect(script.url) as client:
            producer = await client.producer(TOPIC, send_timeout_s=None)
            await producer.post(b"x")
            raise ZeroDivisionError

    async with asyncio.timeout(10):
        with pytest.raises(ZeroDivisionError):
            await leave()


async def test_nothing_is_left_running_of_a_client_whose_broker_never_answers() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"pulsar://127.0.0.1:{silent.getsockname()[1]}"
        client = anabranch.connect(url, operation_timeout_s=0.05)
        for opening in (
            client.producer(TOPIC),
            client.stream_consumer(TOPIC, "s"),
            client.queue_consumer(subscription="s", namespace="public/default"),
            client.checkpoint_consumer(TOPIC),
        ):
            with pytest.raises(anabranch.TimedOut, match=r"within 0\.05 s"):
                await opening
        await client.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_nothing_about_entry_buckets_can_be_chosen_by_an_application() -> None:
    """Brokers and their settings decide; neither a name nor a parameter of the client is about them."""
    offered = set(anabranch.__all__)
    for name in anabranch.__all__:
        found = getattr(anabranch, name)
        own = (
            [one for name, one in vars(found).items() if not name.startswith("_") or name == "__init__"]
            if isinstance(found, type)
            else []
        )
        callables = [found, *own]
        for one in callables:
            offered.add(getattr(one, "__name__", ""))
            if callable(one):
                with contextlib.suppress(ValueError, TypeError):
                    offered |= inspect.signature(one).parameters.keys()
    assert {"messages_max", "consumer_name", "stream_consumer", "ordering_key"} <= offered
    assert not [name for name in offered if "bucket" in name.lower() or name == "splits"]


# Raised to the sink of Spark only, or caught as the class above it.
OF_THE_CLIENT = {"AttemptDropped", "AttemptInDoubt", "ConnectRefused", "WriteDecided"}


def test_every_error_that_an_application_gets_is_public_and_in_the_table() -> None:
    """`TopicMadeAgain` stood in the table and was not to be caught by that name."""
    found = {
        name
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, AnabranchError)
    }
    assert {name for name in found - OF_THE_CLIENT if name not in anabranch.__all__} == set()
    table = (ROOT / "docs" / "client" / "README.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(\w+)` \|", table, re.M))
    assert found - OF_THE_CLIENT - {"AnabranchError"} == told


@pytest.mark.skipif(shutil.which("basedpyright", path=BIN) is None, reason="`make pyright` installs it")
def test_pyright_finds_nothing_wrong_in_a_program_that_uses_all_of_the_client(tmp_path: Path) -> None:
    source = (Path(__file__).parent / "whole_surface.py").read_text(encoding="utf-8")
    assert pyright(tmp_path, source) == []
    # It sees types of messages, or it would say nothing of this either.
    wrong = (
        source
        + """

async def wrong(client: anabranch.Client) -> None:
    producer = await client.producer("t", schema=anabranch.JsonSchema(Order))
    await producer.send("no order")
"""
    )
    (told,) = pyright(tmp_path, wrong)
    assert told["rule"] == "reportArgumentType"


def pyright(folder: Path, source: str) -> list[Any]:
    """What it finds in the program."""
    program = folder / "program.py"
    program.write_text(source, encoding="utf-8")
    settings = {"typeCheckingMode": "standard", "include": [str(program)], "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    ran = subprocess.run(
        [
            str(Path(BIN) / "basedpyright"),
            "--outputjson",
            f"--pythonpath={sys.executable}",
            f"--project={folder}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    found: list[Any] = json.loads(ran.stdout)["generalDiagnostics"]
    return found
