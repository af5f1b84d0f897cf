"""The names of the files and folders of a table. Pure.

Readers of Parquet find files by listing folders, and each hides other names: Spark and Arrow ignore names that begin
with `_` or `.`, DuckDB ignores none. So a table's folder holds nothing but its files, and all that the job itself needs
is in a folder beside it.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Final
from urllib.parse import quote

from anabranch.model.names import TopicName

# Stands in a folder whose files are being replaced. It is no Parquet, but its name claims so: a reader of the folder
# then gets an error instead of duplicate or missing rows.
GUARD: Final = "being-compacted.parquet"
GUARD_TEXT: Final = (
    b"This folder's small files are being replaced by a large one. Readers fail until that is done, which takes a "
    b"moment. If it stays: run `anabranch pipeline to-parquet` with the same --output again, which finishes it.\n"
)
_FILE: Final = re.compile(r"part-\d{8,}-\d{5,}\.parquet")


def beside(output: str) -> str:
    """The default of the job's own folder. `_` hides it from readers of the folder of all tables."""
    parent, slash, name = output.rstrip("/").rpartition("/")
    return f"{parent}{slash}_{name}.anabranch"


def folder_of(topic: str) -> str:
    """`tenant/namespace/name`: the folder of a topic's own table, in the folder of all tables."""
    name = TopicName.parse(topic)
    return "/".join(_visible(part) for part in (*str(name.namespace).split("/"), name.local))


def _visible(part: str) -> str:
    """A folder name that no reader takes for a pattern, a partition, or hidden."""
    quoted = quote(part, safe="")
    return quoted if quoted[0] not in "_." else f"%{ord(quoted[0]):02X}{quoted[1:]}"


def file_of(record: int, number: int) -> str:
    """A unique name: each record of the table's log names its own files."""
    return f"part-{record:08}-{number:05}.parquet"


def is_ours(path: str) -> bool:
    """Whether this job wrote that file of the table."""
    return _FILE.fullmatch(path.rpartition("/")[2]) is not None


def day_of(path: str, column: str) -> date | None:
    """The day whose partition holds a file, given by its path in the table. None for rows without a time."""
    folder = path.rpartition("/")[0].rpartition("/")[2]
    name, _, value = folder.partition("=")
    if name != column:
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        return None
