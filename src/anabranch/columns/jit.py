"""Data plane. How the kernels of this package are compiled, and where the compiled code is kept.

A kernel is compiled at its first call (a second or so each) and loaded from disk ever after (milliseconds). The code is
kept in the first of these places that can be written: `$NUMBA_CACHE_DIR`, `__pycache__` beside this file, the user's
cache folder, a folder of the user's own among the temporary files. Where none can be, each process compiles for itself.

To see whether a kernel's code is stale, Numba checks only the kernel's own file, not the kernels that it calls from
other files. So there is one folder per state of this package's sources, and a change anywhere starts a new one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import numba
from numba.core import config
from numba.core.caching import FunctionCache

F = TypeVar("F", bound=Callable[..., object])

_PREFIX: Final = "anabranch-kernels-"
_KEPT_SECONDS: Final = 7 * 24 * 3600


def _fingerprint() -> str:
    value = 0
    for path in sorted(Path(__file__).parent.glob("*.py")):
        value = zlib.crc32(path.read_bytes(), zlib.crc32(path.name.encode(), value))
    return f"{value:08x}"


def places() -> Iterator[Path]:
    """Where compiled code may be kept, best first."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(chosen)
    yield Path(__file__).parent / "__pycache__"
    if home := os.environ.get("XDG_CACHE_HOME"):
        yield Path(home) / "anabranch"
    elif os.path.isabs(home := os.path.expanduser("~")):
        yield Path(home) / ".cache" / "anabranch"
    # One folder per user, because its contents are executed: no other user may be able to write to it.
    yield Path(tempfile.gettempdir()) / f"anabranch-{os.getuid() if hasattr(os, 'getuid') else 'kernels'}"


def _is_ours(place: Path) -> bool:
    """Whether the folder is writable, and no user but us (or root) could have put code there."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
        found = place.stat()
    except OSError:
        return False
    return not hasattr(os, "getuid") or (found.st_uid in (os.getuid(), 0) and not found.st_mode & 0o002)


def find_cache(candidates: Iterator[Path], fingerprint: str) -> Path | None:
    """The folder for this state of the sources in the first usable place; folders unused for long are removed."""
    for place in candidates:
        cache = place / (_PREFIX + fingerprint)
        if _is_ours(place) and _is_ours(cache):
            newest = cache.stat().st_mtime
            for old in place.glob(_PREFIX + "*"):
                # A process with older sources may still be writing to its own folder.
                if newest - old.stat().st_mtime > _KEPT_SECONDS:
                    shutil.rmtree(old, ignore_errors=True)
            return cache
    return None


try:
    CACHE: Final[Path | None] = find_cache(places(), _fingerprint())
except OSError:  # Sources that cannot be read, as in a zip file.
    CACHE = None  # type: ignore[misc]


class _Cache(FunctionCache):  # type: ignore[misc]
    """Numba's own cache; but if the disk fails or its data is damaged, code is compiled again and the call succeeds."""

    def load_overload(self, signature: Any, target: Any) -> Any:
        try:
            return super().load_overload(signature, target)
        except Exception:  # Damaged data makes unpickling raise anything.
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(signature, data)


def kernel(function: F) -> F:
    """Compiles `function` when it is first called, and lets other threads run meanwhile."""
    compiled: Any = numba.njit(nogil=True, error_model="numpy")(function)
    if CACHE is not None:
        # Numba reads its setting when a cache is made; other users of Numba keep theirs.
        before, config.CACHE_DIR = config.CACHE_DIR, str(CACHE)
        try:
            with contextlib.suppress(RuntimeError):  # No place for this file's code after all.
                compiled._cache = _Cache(function)
        finally:
            config.CACHE_DIR = before
    return compiled  # type: ignore[no-any-return]


def part(function: F) -> F:
    """A function that kernels call: rare or long work, compiled once instead of into each caller."""
    return numba.njit(nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


def inline(function: F) -> F:
    """A function that is compiled into each kernel that calls it."""
    return numba.njit(nogil=True, error_model="numpy", forceinline=True)(function)  # type: ignore[no-any-return]
