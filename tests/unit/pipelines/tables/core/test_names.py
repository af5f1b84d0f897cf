"""What the files and folders of a table are called."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.pipelines.tables.core.names import GUARD, beside, day_of, file_of, folder_of, is_ours


def test_the_jobs_folder_is_beside_the_table_and_hidden_from_readers_of_all_tables() -> None:
    assert beside("/data/clicks") == "/data/_clicks.anabranch"
    assert beside("s3a://lake/raw/clicks/") == "s3a://lake/raw/_clicks.anabranch"
    assert beside("clicks") == "_clicks.anabranch"


def test_a_topic_has_a_folder_by_its_name() -> None:
    assert folder_of("topic://public/default/clicks") == "public/default/clicks"
    assert folder_of("persistent://acme/web/a b=*") == "acme/web/a%20b%3D%2A"


@pytest.mark.parametrize("name", ["_hidden", ".hidden"])
def test_a_topic_whose_name_readers_would_pass_over_is_seen_by_them(name: str) -> None:
    assert not folder_of(f"topic://public/default/{name}").rpartition("/")[2].startswith(("_", "."))


local_names = st.text(st.characters(min_codepoint=33, exclude_categories=["C", "Z"]), min_size=1, max_size=20)


@given(st.sets(local_names.filter(lambda name: "/" not in name), min_size=2, max_size=2))
def test_two_topics_never_share_a_folder(names: set[str]) -> None:
    one, other = (folder_of(f"topic://public/default/{name}") for name in names)
    assert one != other
    assert one.count("/") == other.count("/") == 2


def test_files_sort_as_they_were_written_and_are_known_again() -> None:
    names = [file_of(record, number) for record in (1, 2, 10, 2000) for number in (0, 1, 11)]
    assert names == sorted(names)
    assert all(is_ours(f"date=2026-05-01/{name}") for name in names)
    assert not is_ours(f"date=2026-05-01/{GUARD}")
    assert not is_ours("date=2026-05-01/somebody.parquet")


def test_a_files_day_is_its_folders() -> None:
    assert day_of("date=2026-05-01/part-00000001-00000.parquet", "date") == date(2026, 5, 1)
    assert day_of("day=2026-05-01/part-00000001-00000.parquet", "date") is None
    assert day_of("date=__HIVE_DEFAULT_PARTITION__/part-00000001-00000.parquet", "date") is None
    assert day_of("part-00000001-00000.parquet", "date") is None
