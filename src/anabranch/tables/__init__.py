"""Topics as Delta tables, without the topics: what a table's files and commits look like, and how they change. Needs
`deltalake` and `pyarrow`, the extra `anabranch[tables]`.

Readers start at `snapshot.open_snapshot`. The process that writes tables is in `anabranch.table_writer`.
"""
