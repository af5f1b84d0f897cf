"""What every adapter of `TableStorage` has to do, whatever it stores its files in."""

from __future__ import annotations

from anabranch.pipelines.tables.core.compaction import TableFile
from anabranch.pipelines.tables.files import TableStorage


def check_contract(files: TableStorage, root: str) -> None:
    """Runs in an empty folder, which it leaves with a few files."""
    table = f"{root}/table"
    assert not files.exists(table)
    assert files.parts(table) == []
    assert files.names(table) == []
    # A file is created once.
    assert files.create(f"{table}/date=2026-05-01/a.parquet", b"one")
    assert not files.create(f"{table}/date=2026-05-01/a.parquet", b"another")
    assert files.read(f"{table}/date=2026-05-01/a.parquet") == b"one"
    assert files.create(f"{table}/date=2026-05-02/b.parquet", b"\x00\xff")
    assert files.read(f"{table}/date=2026-05-02/b.parquet") == b"\x00\xff"
    # A hidden file is not one of the table's, but exists.
    assert files.create(f"{table}/_hidden/c.parquet", b"")
    assert files.create(f"{table}/.d", b"")
    assert files.parts(table) == [
        TableFile("date=2026-05-01/a.parquet", 3),
        TableFile("date=2026-05-02/b.parquet", 2),
    ]
    visible = ["date=2026-05-01", "date=2026-05-02"]
    assert [name for name in files.names(table) if name.startswith("date=")] == visible
    assert "_hidden" in files.names(table)
    # A move makes folders, and may be repeated.
    source, target = f"{table}/date=2026-05-01/a.parquet", f"{table}/date=2026-05-03/e.parquet"
    files.persist([source])
    for _ in range(2):
        files.move(source, target)
        assert not files.exists(source)
        assert files.read(target) == b"one"
    # A removal may be repeated too, of files and of folders.
    for path in (target, f"{table}/_hidden"):
        for _ in range(2):
            files.remove(path)
            assert not files.exists(path)
    with files.locked(f"{root}/work/lock"):
        pass
