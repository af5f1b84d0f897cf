"""Logs: one event a line, with its facts as fields where that is asked for."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.runtime import logs
from anabranch.model.names import NamespaceName, TopicName


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, left as it was found."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def events(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_has_an_object_a_line_with_what_was_raised_in_it(root: logging.Logger) -> None:
    out = io.StringIO()
    logs.configure(BrokerConfig(log_format="json"), out)
    log = logging.getLogger("some.module")
    log.info("two\nlines of %s", "text")
    try:
        raise ValueError("bad\nluck")
    except ValueError:
        log.exception("it failed")
    first, second = events(out)
    assert (first["level"], first["logger"], first["message"]) == (
        "INFO",
        "some.module",
        "two\nlines of text",
    )
    assert first["time"].endswith("Z")
    assert "bad\nluck" in second["exception"]


def test_nobody_writes_a_line_of_his_own_or_paints_the_terminal(root: logging.Logger) -> None:
    out = io.StringIO()
    logs.configure(BrokerConfig(), out)
    logging.getLogger("some.module").warning("consumer %s has gone", "a\nERROR \x1b[31m b\r\x9b\u2028ü")
    assert len(out.getvalue().splitlines()) == 1
    assert out.getvalue().endswith(r"consumer a\nERROR \x1b[31m b\r\x9b\u2028ü has gone" + "\n")


def test_who_floods_the_broker_does_not_flood_its_log(root: logging.Logger) -> None:
    out, now = io.StringIO(), [0.0]
    handler = logging.StreamHandler(out)
    handler.addFilter(logs.Flood(most=3, period_s=10, clock=lambda: now[0]))
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    log = logging.getLogger("some.module")
    for port in range(8):
        log.warning("closing connection from %s", port)
        log.error("trouble")
    log.info("something else")
    assert out.getvalue().count("closing") == 3
    assert out.getvalue().count("trouble") == 8
    assert "something else" in out.getvalue()
    now[0] = 10.0
    log.warning("closing connection from %s", 8)
    log.warning("closing connection from %s", 9)
    assert out.getvalue().splitlines()[-2:] == [
        "closing connection from 8 (5 more like it were left out before)",
        "closing connection from 9",
    ]


def test_names_and_whatever_is_added_become_fields(root: logging.Logger) -> None:
    out = io.StringIO()
    logs.configure(BrokerConfig(log_format="json"), out)
    topic, namespace = TopicName.parse("a/b/c"), NamespaceName.parse("a/b")
    logging.getLogger("x").info("%s of %s", topic, namespace, extra={"entries": 3, "level": "no", "odd": {1}})
    (event,) = events(out)
    assert event["topic"] == "persistent://a/b/c"
    assert event["namespace"] == "a/b"
    assert (event["entries"], event["level"], event["odd"]) == (3, "INFO", "{1}")


def test_the_level_is_the_settings(root: logging.Logger) -> None:
    out = io.StringIO()
    logs.configure(BrokerConfig(log_level="warning"), out)
    log = logging.getLogger("x")
    log.info("quiet")
    log.warning("loud")
    assert "quiet" not in out.getvalue()
    assert "WARNING x loud" in out.getvalue()


def test_what_nobody_caught_is_an_object_too() -> None:
    program = """
import gc, threading, warnings
from anabranch.broker.runtime import logs
from anabranch.broker.config.config import BrokerConfig
logs.configure(BrokerConfig(log_format="json"))
warnings.warn("careful")
def fail(): raise ValueError("in a thread")
one = threading.Thread(target=fail)
one.start()
one.join()
class Bad:
    def __del__(self): raise ValueError("in a finaliser")
Bad()
gc.collect()
raise ValueError("at the end")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    told = [json.loads(line) for line in ended.stderr.splitlines()]
    assert "careful" in told[0]["message"]
    raised = [one["exception"].splitlines()[-1] for one in told[1:]]
    assert raised == ["ValueError: in a thread", "ValueError: in a finaliser", "ValueError: at the end"]
    assert ended.returncode == 1
