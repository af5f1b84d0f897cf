"""Sends the same requests to two brokers and reports where their answers differ, as a client or script would see it.

Requests are data (`tests/interop/rest_requests.txt` says how they are written). Ours may say more than the other: an
additional key is no difference, a missing key is one.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pulsar

_READ_S = 60.0
REDIRECTS_MAX = 5
_EARLIEST = pulsar.InitialPosition.Earliest
# Headers that Pulsar's admin clients read.
_HEADERS = re.compile(r"x-pulsar-.*|location")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    kind: str
    headers: frozenset[str]
    body: bytes

    @property
    def value(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def says_why(self) -> bool:
        value = self.value
        return isinstance(value, dict) and bool(value.get("reason"))


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the requests. `ours` is the status that is known to differ, and `why` the reason."""

    line: int
    method: str
    path: str
    body: str | None
    is_loose: bool
    ours: int | None = None
    why: str = ""

    def __str__(self) -> str:
        return f"line {self.line}: {self.method} {self.path} {self.body or ''}".rstrip()


@dataclass(frozen=True, slots=True)
class Act:
    """Something that a client does between requests."""

    words: tuple[str, ...]


def read(path: Path) -> Iterator[Step | Act]:
    prefix, pending = "", None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := re.fullmatch(r" +ours (\d+): (.+)", line):
            assert pending is not None, f"line {number} is below no request"
            step, pending = pending, None
            yield Step(step.line, step.method, step.path, step.body, step.is_loose, int(match[1]), match[2])
            continue
        if pending is not None:
            yield pending
            pending = None
        if line.startswith("@"):
            prefix = line[1:].strip()
        elif line.startswith("!"):
            yield Act(tuple(line[1:].split()))
        elif line and not line.startswith("#"):
            method, path_, *body = line.split(" ", 2)
            full = path_ if path_.startswith("/") else prefix + ("" if path_ == "." else "/" + path_)
            pending = Step(number, method.rstrip("~"), full, body[0] if body else None, method.endswith("~"))
    if pending is not None:
        yield pending


@dataclass(slots=True)
class Side:
    """One of the two brokers, or several behind one port: then redirects are followed. `last` is the last message id it
    answered with."""

    url: str
    http_port: int
    broker_id: str = ""
    is_following: bool = False
    last: dict[str, Any] = field(default_factory=lambda: {"ledgerId": 0, "entryId": 0})
    _client: pulsar.Client | None = None
    _open: list[Any] = field(default_factory=list)

    def ask(self, step: Step) -> Answer:
        answer, location = self._ask(step, self.http_port)
        for _ in range(REDIRECTS_MAX):
            if answer.status == 307 and self.is_following and location is not None:
                answer, location = self._ask(step, location)
        if answer.status == 200 and isinstance(answer.value, dict) and "ledgerId" in answer.value:
            self.last = answer.value
        return answer

    def _ask(self, step: Step, port: int) -> tuple[Answer, int | None]:
        """The answer, and the port of another broker that it redirects to."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_READ_S)
        path = step.path.replace("$ledger", str(self.last["ledgerId"]))
        body = None if step.body is None else step.body.replace("$last", json.dumps(self.last))
        headers = {"Content-Type": "application/json"} if step.method in ("PUT", "POST") else {}
        try:
            broker_id = self.broker_id or f"127.0.0.1:{self.http_port}"
            connection.request(step.method, path.replace("$broker", broker_id), body, headers)
            response = connection.getresponse()
            found = {name.lower() for name, _ in response.getheaders()}
            location = urlsplit(response.getheader("location") or "").port
            answer = Answer(
                response.status,
                (response.getheader("content-type") or "").partition(";")[0],
                frozenset(filter(_HEADERS.fullmatch, found)),
                response.read(),
            )
        except TimeoutError:
            raise AssertionError(f"port {port} does not answer {step} within {_READ_S} s") from None
        finally:
            connection.close()
        return answer, location

    def act(self, act: Act) -> None:
        if self._client is None:
            logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            self._client = pulsar.Client(self.url, logger=logger)
        match act.words:
            case ("produce", topic, count):
                producer = self._client.create_producer(topic, batching_enabled=False)
                for number in range(int(count)):
                    producer.send(b"%d" % number, partition_key="k", properties={"a": "b"})
                producer.close()
            case ("attach", topic, subscription):
                self._open.append(self._client.subscribe(topic, subscription, initial_position=_EARLIEST))
                self._open.append(self._client.create_producer(topic))
            case ("detach",):
                for one in self._open:
                    one.close()
                self._open.clear()
            case _:
                raise AssertionError(f"what is {act.words}?")

    def close(self) -> None:
        if self._client is not None:
            self._client.shutdown()


def differences(theirs: Answer, ours: Answer, *, is_loose: bool) -> list[str]:
    """What a client would notice. A success without a body is the same with 200 and with 204."""
    if theirs.status >= 400 and (theirs.status >= 500 or not theirs.says_why):
        # Theirs failed without a reason, or with a stack trace: ours has to say what is wrong.
        is_clear = 400 <= ours.status < 500 or ours.status == theirs.status == 503
        return (
            [] if is_clear and ours.says_why else [f"{ours.status} without a reason, theirs {theirs.status}"]
        )
    statuses = [204 if one.status == 200 and not one.body else one.status for one in (theirs, ours)]
    if statuses[0] != statuses[1]:
        return [f"status {ours.status}, theirs {theirs.status}"]
    if ours.status >= 400:
        return [] if ours.says_why else ["no reason"]
    found = [f"no header {name}" for name in sorted(theirs.headers - ours.headers)]
    if theirs.value is None or ours.value is None:
        return found if is_loose or theirs.body == ours.body else [*found, "another body"]
    if is_loose:
        return [*found, *_delta(_shape(theirs.value), _shape(ours.value))]
    return [*found, *_delta(_plain(theirs.value), _plain(ours.value))]


def _shape(value: Any) -> Any:
    """Types in place of values. Nulls count as absent."""
    match value:
        case dict():
            return {key: _shape(one) for key, one in value.items() if one is not None}
        case list():
            return [_shape(value[0])] if value else []
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case _:
            return "text"


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(one) for key, one in value.items() if one is not None}
        case list():
            return sorted(map(_plain, value), key=json.dumps)
        case _:
            return value


def _delta(theirs: Any, ours: Any, at: str = "answer") -> list[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        missing = [f"{at}.{key} is missing" for key in theirs if key not in ours]
        both = [key for key in theirs if key in ours]
        return missing + [line for key in both for line in _delta(theirs[key], ours[key], f"{at}.{key}")]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return [
            line for one, other in zip(theirs, ours, strict=True) for line in _delta(one, other, f"{at}[]")
        ]
    return [] if theirs == ours else [f"{at} is {ours!r:.100}, theirs {theirs!r:.100}"]
