"""The stores of one broker, and what several on a machine divide among them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.runtime.listening import StartError
from anabranch.broker.stores import lock_folder, shared_budgets, sole_stores

MIB = 1 << 20


def test_the_memory_of_a_machine_is_divided_among_its_brokers_and_its_disk_is_not() -> None:
    config = BrokerConfig(
        log_cache_bytes=64 * MIB, max_pending_publish_bytes=60 * MIB, log_disk_bytes_max=400 * MIB
    )
    shared = shared_budgets(config, 4)
    assert (shared.log_cache_bytes, shared.max_pending_publish_bytes) == (16 * MIB, 15 * MIB)
    # Each of them counts the files of all, and the free space.
    assert shared.log_disk_bytes_max == config.log_disk_bytes_max
    assert shared.log_disk_reserve_bytes == config.log_disk_reserve_bytes


def test_no_share_is_too_small_to_work_with() -> None:
    shared = shared_budgets(BrokerConfig(log_cache_bytes=2 * MIB), 64)
    assert shared.log_cache_bytes == MIB


async def test_a_folder_in_use_is_refused_until_the_last_descriptor_of_its_lock_is_closed(
    tmp_path: Path,
) -> None:
    lock = await lock_folder(tmp_path / "data")
    inherited = os.dup(lock)
    os.close(lock)
    with pytest.raises(StartError, match=r"another broker serves .* already"):
        async with sole_stores(BrokerConfig(data_dir=str(tmp_path / "data"))):
            pass
    os.close(inherited)
    async with sole_stores(BrokerConfig(data_dir=str(tmp_path / "data"))):
        pass
