"""The error for a schema that cannot become columns."""

from __future__ import annotations

from anabranch.errors import AnabranchError


class NoColumns(AnabranchError, ValueError):
    """The schema cannot become columns; the text says why, and what to do."""
