"""The file in which `anabranch consume --checkpoint` keeps its position: read at the start, replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

from anabranch.cli.parsing.options import UsageError


class CheckpointFile:
    """The checkpoint file. A reader sees the checkpoint before or the one after, never half of one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Beside the file, since files can be replaced in one step only within a folder.
        self._next = path.with_name(f"{path.name}.next")
        self._last: bytes | None = None

    def read(self) -> bytes | None:
        """The checkpoint; None if there is no such file yet. Checks now, not after an hour, whether it can be
        written."""
        try:
            self._next.touch()
            self._last = self.path.read_bytes()
        except FileNotFoundError:
            if not self.path.parent.is_dir():
                raise UsageError(f"--checkpoint {self.path}: there is no folder {self.path.parent}") from None
            return None
        except OSError as error:
            raise UsageError(f"--checkpoint {self.path}: {error.strerror}") from None
        finally:
            self._next.unlink(missing_ok=True)
        return self._last

    def write(self, checkpoint: bytes) -> None:
        """Returns once the checkpoint would survive a loss of power."""
        if checkpoint == self._last:
            return
        try:
            with self._next.open("wb") as file:
                file.write(checkpoint)
                file.flush()
                os.fsync(file.fileno())
            self._next.replace(self.path)
        except OSError as error:
            raise UsageError(f"--checkpoint {self.path} cannot be written: {error.strerror}") from None
        self._last = checkpoint
