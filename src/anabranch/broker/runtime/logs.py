"""The broker's log: one event a line, as text or as JSON.

In JSON the facts of an event are fields of their own, so that a log can be searched for all lines about one topic.
Names of topics and namespaces in a message become fields by themselves; callers add others with `extra=`. Text has them
in its message. Secrets are never logged. In JSON every line of the process is an object, including those that text mode
prints on the terminal, and uncaught errors.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TextIO

from anabranch.model.names import NamespaceName, TopicName

if TYPE_CHECKING:
    from anabranch.broker.config.config import BrokerConfig

log = logging.getLogger(__name__)

TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_CONTROLS: Final = {
    code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
}
# The attributes of every record; all others came from `extra=`.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


def configure(config: BrokerConfig, stream: TextIO | None = None, *, process: str = "") -> None:
    """Makes the process log as configured, on standard error unless another stream is given. `process` names the
    process in every line, where several write to one log."""
    handler = logging.StreamHandler(stream or sys.stderr)
    text = TEXT.replace("%(name)s", f"{process} %(name)s") if process else TEXT
    handler.setFormatter(JsonFormatter(process) if config.log_format == "json" else TextFormatter(text))
    handler.addFilter(Flood())
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)
    if config.log_format == "json":
        _catch_all()


def tell(config: BrokerConfig, level: int, text: str, **facts: object) -> None:
    """Prints a line for the user that started the process, errors on standard error; in JSON, logs the line instead."""
    if config.log_format == "json":
        log.log(level, "%s", text, extra=facts)
    else:
        print(f"anabranch: {text}", file=sys.stderr if level > logging.INFO else sys.stdout, flush=True)


def _catch_all() -> None:
    """Logs uncaught errors and warnings, which Python would print as text."""
    logging.captureWarnings(True)
    sys.excepthook = lambda kind, error, trace: log.critical(
        "the process ends because of an uncaught error", exc_info=error
    )
    threading.excepthook = lambda found: log.error(
        "a thread ended because of an uncaught error", exc_info=found.exc_value
    )
    sys.unraisablehook = lambda found: log.error(
        "an error could not be raised to any caller", exc_info=found.exc_value
    )


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {name: value for name, value in vars(record).items() if name not in _USUAL}
    for fact in record.args if isinstance(record.args, tuple) else ():
        if isinstance(fact, TopicName):
            fields.setdefault("topic", str(fact))
        elif isinstance(fact, NamespaceName):
            fields.setdefault("namespace", str(fact))
    return fields


class Flood(logging.Filter):
    """Passes a limited number of events of one kind per period; the first of the next period says how many were
    dropped.

    Each refused connection is logged, and any client can cause any number of them: they must not fill the disk. Errors
    always pass, and so do the debug events of `logLevel=debug`.
    """

    def __init__(
        self, most: int = 200, period_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._most = most
        self._period_s = period_s
        self._clock = clock
        self._began = clock()
        self._counts: dict[tuple[str, str], int] = {}
        self._left_out: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not logging.DEBUG < record.levelno < logging.ERROR:
            return True
        now = self._clock()
        if now - self._began >= self._period_s:
            self._began = now
            self._left_out = {kind: n - self._most for kind, n in self._counts.items() if n > self._most}
            self._counts = {}
        kind = (record.name, str(record.msg))
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count == 1 and (left_out := self._left_out.pop(kind, 0)):
            record.msg = f"{record.msg} ({left_out} more like it were left out before)"
        return count <= self._most


class TextFormatter(logging.Formatter):
    """One line per event, whatever names clients choose: a name cannot start a line, or control a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.translate(_CONTROLS)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One object per line: time (UTC), level, logger, message, the event's own fields, and the exception.

    A process of several is named in a field of its own."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        event: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process:
            event["process"] = self._process
        # Fields cannot replace those of every event.
        event |= {name: value for name, value in _fields(record).items() if name not in event}
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            event["stack"] = record.stack_info
        return json.dumps(event, default=str, ensure_ascii=False)
