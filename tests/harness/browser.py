"""A real Chromium without a window, driven over the DevTools protocol through two pipes.

No driver program and no library: the few commands that tests need are plain JSON, and a pipe needs no port that could
be taken. Everything waits with a deadline, and nothing of the browser outlives the test.
"""

from __future__ import annotations

import atexit
import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 30.0
# Above the two descriptors that the browser reads and writes, so that putting ours there cannot overwrite one.
_FIRST_FD = 10

_FLAGS = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
    "--metrics-recording-only",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
    "--password-store=basic",
]

# Puts our pipes where the browser looks for them, and becomes the browser.
_EXEC = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""

KEYS: Mapping[str, int] = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}


def chromium() -> str | None:
    """Where the browser is; None if there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def _high(ends: tuple[int, int]) -> tuple[int, int]:
    """The same pipe, at descriptors above those two numbers."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD) for fd in ends]
    for fd in ends:
        os.close(fd)
    return moved[0], moved[1]


class BrowserFailed(AssertionError):
    """The browser refused a command, threw in the page, or did not answer in time."""


class PageLeft(BrowserFailed):
    """The page was replaced by another during the call."""


# What the browser answers then, depending on when the page changed.
_LEFT = ("navigated or closed", "context was destroyed", "Cannot find context", "Promise was collected")


class Browser:
    """A context manager. One browser serves many pages, each in a window of its own."""

    def __init__(self) -> None:
        path = chromium()
        assert path is not None, "no chromium here"
        self._folder = tempfile.mkdtemp(prefix="anabranch-browser-")
        theirs_in, self._out = _high(os.pipe())
        self._in, theirs_out = _high(os.pipe())
        command = [path, *_FLAGS, f"--user-data-dir={self._folder}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _EXEC, str(theirs_in), str(theirs_out), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
            start_new_session=True,  # Its helpers are ended with it.
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        atexit.register(self.close)
        self.call("Browser.getVersion")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        atexit.unregister(self.close)

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for fd in (self._in, self._out):
            if fd >= 0:
                os.close(fd)
        self._in = self._out = -1
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- the protocol

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._read(deadline, method)
            if answer.get("id") == number:
                if "error" in answer:
                    left = any(words in answer["error"]["message"] for words in _LEFT)
                    raise (PageLeft if left else BrowserFailed)(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self, deadline: float, waiting_for: str) -> dict[str, Any]:
        """The next message; events are kept in `events` as well."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._in, 1 << 20) if ready else b""
            if not data:
                raise BrowserFailed(f"the browser did not answer {waiting_for}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def page(self, url: str, **options: Any) -> Page:
        return Page(self, url, **options)


class Page:
    """One window."""

    def __init__(
        self,
        browser: Browser,
        url: str,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        still: bool = False,
        zone: str = "UTC",
    ) -> None:
        self._browser = browser
        context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=context)
        self._target = target["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.emulate(dark=dark, still=still)
        self.call("Emulation.setTimezoneOverride", timezoneId=zone)
        self.call("Page.navigate", url=url)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def emulate(self, *, dark: bool, still: bool = False) -> None:
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    # -- looking

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserFailed(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def until(self, script: str, within_s: float = 15.0) -> Any:
        """Waits until an expression is true, on this page or the next, and returns it; true for an element."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                found = self.evaluate(
                    f"(() => {{ try {{ const found = {script}; return found instanceof Node || found; }} "
                    "catch { return null; } })()"
                )
                if found:
                    return found
                if time.monotonic() > deadline:
                    raise BrowserFailed(f"not within {within_s} s: {script}\n{self.text()[:2000]}")
                self.evaluate("new Promise((done) => setTimeout(done, 30))")
            except PageLeft:
                if time.monotonic() > deadline:
                    raise

    def reload(self) -> None:
        """Returns once the page has been loaded again."""
        self.evaluate("window.before = true")
        self.call("Page.reload")
        self.until("window.before !== true")

    def text(self) -> str:
        return str(self.evaluate("document.body.innerText"))

    def shows(self, words: str, within_s: float = 15.0) -> None:
        """Waits until the page shows these words."""
        self.until(f"document.body.innerText.includes({json.dumps(words)})", within_s)

    def screenshot(self, path: Path, *, whole: bool = False) -> Path:
        """`whole`: the page to its end, not only what fits into the window."""
        parameters: dict[str, Any] = {"format": "png"}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            parameters |= {"captureBeyondViewport": True, "clip": {**size, "scale": 1}}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **parameters)["data"]))
        return path

    def complaints(self) -> list[str]:
        """Errors of the page so far: exceptions, console errors, blocked or failed loads."""
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            parameters = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                found.append(details.get("exception", {}).get("description") or details["text"])
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                found.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
            elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
                found.append(str([one.get("value") for one in parameters["args"]]))
        return found

    def requested(self) -> list[str]:
        """The addresses asked for so far."""
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event["method"] == "Network.requestWillBeSent"
        ]

    # -- hands

    def key(self, *names: str) -> None:
        for name in names:
            modifiers = 8 if name.startswith("Shift+") else 0
            plain = name.removeprefix("Shift+")
            known: dict[str, Any] = {"key": plain, "code": plain, "windowsVirtualKeyCode": KEYS.get(plain, 0)}
            if plain == "Enter":
                known["text"] = "\r"
            for kind in ("keyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, modifiers=modifiers, **known)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def place(self, selector: str) -> tuple[float, float]:
        """The middle of an element, scrolled into sight."""
        found = self.until(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null; "
            "e.scrollIntoView({block: 'nearest'}); const b = e.getBoundingClientRect(); "
            "return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )
        return float(found[0]), float(found[1])

    def press(self, selector: str) -> None:
        self.click(*self.place(selector))


Opener = Callable[..., Page]
