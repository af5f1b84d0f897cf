"""Ids of entries as people type them, and their paths in the admin REST. Pure."""

from __future__ import annotations

from anabranch.cli.parsing.options import UsageError


def entry_path(text: str) -> str:
    """The tail of the path of the entry with that id. Ledgers are of one segment: a segment before them may be left
    out."""
    parts = text.strip("()").replace(",", ":").split(":")
    if len(parts) > 3:
        parts = parts[1:3]  # SEGMENT:LEDGER:ENTRY:INDEX, as `consume --json` prints it.
    elif len(parts) == 3:
        parts = parts[1:] if parts[2] != "-1" else parts[:2]
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise UsageError(f"{text!r}: expected an id as LEDGER:ENTRY, or as `consume --json` prints it")
    return f"ledger/{parts[0]}/entry/{parts[1]}"
