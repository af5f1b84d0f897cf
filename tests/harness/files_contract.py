"""What every adapter of `Files` has to do, whatever it stores its files in."""

from __future__ import annotations

from anabranch.pipelines.compaction import Part
from anabranch.pipelines.table_files import Files


def check_contract(files: Files, root: str) -> None:
    """In an empty folder, which it leaves with a few files."""
    table = f"{root}/table"
    assert not files.exists(table)
    assert files.parts(table) == []
    assert files.names(table) == []
    # A file is made once.
    assert files.create(f"{table}/date=2026-05-01/a.parquet", b"one")
    assert not files.create(f"{table}/date=2026-05-01/a.parquet", b"another")
    assert files.read(f"{table}/date=2026-05-01/a.parquet") == b"one"
    assert files.create(f"{table}/date=2026-05-02/b.parquet", b"\x00\xff")
    assert files.read(f"{table}/date=2026-05-02/b.parquet") == b"\x00\xff"
    # What is hidden is not among the table's, but is there.
    assert files.create(f"{table}/_hidden/c.parquet", b"")
    assert files.create(f"{table}/.d", b"")
    assert files.parts(table) == [Part("date=2026-05-01/a.parquet", 3), Part("date=2026-05-02/b.parquet", 2)]
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
    # So may a removal, of files and of folders.
    for path in (target, f"{table}/_hidden"):
        for _ in range(2):
            files.remove(path)
            assert not files.exists(path)
    with files.locked(f"{root}/work/lock"):
        pass
