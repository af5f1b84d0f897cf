"""Lines as records: JSON objects, or rows of CSV below a heading; and how each becomes a message."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from anabranch.cli.messages.encoding import Encoding
from anabranch.cli.messages.fitting import Misfit
from anabranch.cli.messages.line_source import Keyed, Keying
from anabranch.cli.parsing.options import UsageError

RECORD_BYTES_MAX: Final = 64 << 20


class RecordKeying:
    """Makes a message of each record. Its key is a field, or the same for all; a key that the schema has no field for
    is not part of the value."""

    def __init__(self, encoding: Encoding, key: str | None, key_field: str | None) -> None:
        self._encoding = encoding
        self._key = key
        self._key_field = key_field

    def keyed(self, record: dict[str, Any], where: str) -> Keyed:
        key, name = self._key, self._key_field
        if name is not None:
            if name not in record:
                raise UsageError(f"{where} has no field {name!r}; it has {', '.join(record)}")
            key = _key_text(record[name], name, where)
        try:
            try:
                return key, self._encoding.of_record(record)
            except Misfit:
                if name is None:
                    raise
                # Perhaps the field is the key and nothing else.
                rest = {field: value for field, value in record.items() if field != name}
                return key, self._encoding.of_record(rest)
        except Misfit as misfit:
            raise UsageError(f"{where}: {misfit}") from None


def _key_text(value: Any, name: str, where: str) -> str:
    if isinstance(value, dict | list | None):
        raise UsageError(f"{where}: the field {name!r} is neither text nor number")
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()


def json_records(records: RecordKeying) -> Keying:
    decode = msgspec.json.Decoder(dict[str, Any]).decode

    def keyed(lines: list[bytes], first: int) -> Iterator[Keyed]:
        for number, line in enumerate(lines, first):
            if not line.strip():
                continue
            try:
                record = decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise UsageError(f"line {number:,} is no JSON object: {error}") from None
            yield records.keyed(record, f"line {number:,}")

    return keyed


class CsvRecords:
    """Rows of CSV, as lines come: the first is the heading, and a quoted cell may hold line ends."""

    def __init__(self, records: RecordKeying) -> None:
        self._records = records
        self._heading: list[str] | None = None
        self._open: list[str] = []  # Lines of a row whose quoted cell has not ended yet.
        self._open_quotes = self._open_chars = 0
        self._row = 0
        csv.field_size_limit(RECORD_BYTES_MAX)

    def __call__(self, lines: list[bytes], first: int) -> Iterator[Keyed]:
        for text in self._rows(lines, first):
            try:
                cells = next(csv.reader([text], strict=True), [])
            except csv.Error as error:
                raise UsageError(f"{self._where} is no row of CSV: {error}") from None
            self._row += 1
            if self._heading is None:
                self._heading = [cell.strip() for cell in cells]
                if len(set(self._heading)) < len(self._heading) or "" in self._heading:
                    raise UsageError(f"the heading has an empty or a repeated name: {', '.join(cells)}")
            elif cells:
                where = f"row {self._row - 1:,}"
                if len(cells) != len(self._heading):
                    raise UsageError(f"{where} has {len(cells)} cells, the heading {len(self._heading)}")
                yield self._records.keyed(dict(zip(self._heading, cells, strict=True)), where)

    def ended(self) -> None:
        """Raises UsageError if the input ended within a row."""
        if self._open:
            raise UsageError(f"a quoted cell of {self._where} does not end")

    @property
    def _where(self) -> str:
        """The row that is read now."""
        return f"row {self._row:,}" if self._row else "the heading"

    def _rows(self, lines: Iterable[bytes], first: int) -> Iterator[str]:
        for number, line in enumerate(lines, first):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise UsageError(f"line {number:,} is not UTF-8") from None
            self._open.append(text)
            self._open_quotes += text.count('"')
            self._open_chars += len(text)
            if self._open_quotes % 2 == 0:
                whole = "\n".join(self._open)
                self._open.clear()
                self._open_quotes = self._open_chars = 0
                yield whole
            elif self._open_chars > RECORD_BYTES_MAX:
                self.ended()


def encoded_lines(keying: Keying, encoding: Encoding) -> Keying:
    """The same keys, with values encoded by a schema."""
    if encoding.is_plain:
        return keying

    def keyed(lines: list[bytes], first: int) -> Iterator[Keyed]:
        for number, (key, value) in enumerate(keying(lines, first), first):
            try:
                yield key, encoding.of_text(value)
            except Misfit as misfit:
                raise UsageError(f"line {number:,}: {misfit}") from None

    return keyed
