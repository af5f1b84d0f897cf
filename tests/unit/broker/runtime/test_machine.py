"""The machine around a broker, read from folders that look like Linux's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anabranch.broker.runtime.machine import memory_bytes_max, network_bytes_per_s, resident_bytes

GIB = 1 << 30


def written(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_this_process_uses_some_memory_of_its_machine() -> None:
    assert 1 << 20 < resident_bytes() < memory_bytes_max()


def test_without_control_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert memory_bytes_max(tmp_path) == machine_bytes()


@pytest.mark.parametrize(
    ("group", "file", "limit"),
    [
        (
            "0::/system.slice/river.service\n",
            "sys/fs/cgroup/system.slice/river.service/memory.max",
            "1048576",
        ),
        # The limit is that of a group around its own.
        ("0::/system.slice/river.service\n", "sys/fs/cgroup/system.slice/memory.max", "1048576"),
        # In a container the path is the host's.
        ("0::/host/path\n", "sys/fs/cgroup/memory.max", "1048576\n"),
        ("4:cpu:/x\n3:memory:/pod\n", "sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "1048576"),
    ],
)
def test_a_control_group_limits_memory(tmp_path: Path, group: str, file: str, limit: str) -> None:
    written(tmp_path, "proc/self/cgroup", group)
    written(tmp_path, file, limit)
    assert memory_bytes_max(tmp_path) == 1 << 20


@pytest.mark.parametrize("limit", ["max", "9223372036854771712"])
def test_a_group_without_a_limit_limits_nothing(tmp_path: Path, limit: str) -> None:
    written(tmp_path, "proc/self/cgroup", "0::/a\n")
    written(tmp_path, "sys/fs/cgroup/a/memory.max", limit)
    assert memory_bytes_max(tmp_path) == machine_bytes()


def interface(
    root: Path, name: str, *, speed: str, state: str = "up", kind: str = "1", bus: str = "pci0"
) -> None:
    folder = root / "sys/devices" / bus / "net" / name
    for file, text in (("speed", speed), ("operstate", state), ("type", kind)):
        written(root, f"{folder.relative_to(root)}/{file}", text + "\n")
    link = root / "sys/class/net" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)


def test_the_network_takes_what_its_physical_interfaces_take_together(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", speed="1000")
    interface(tmp_path, "eth1", speed="10000")
    interface(tmp_path, "eth2", speed="10000", state="down")
    interface(tmp_path, "lo", speed="", kind="772", bus="virtual")
    interface(tmp_path, "docker0", speed="10000", bus="virtual")
    assert network_bytes_per_s(root=tmp_path) == 11e9 / 8
    assert network_bytes_per_s(["eth1"], tmp_path) == 10e9 / 8


def test_a_network_that_does_not_tell_its_speed_is_unknown(tmp_path: Path) -> None:
    assert network_bytes_per_s(root=tmp_path) is None
    interface(tmp_path, "eth0", speed="-1")
    assert network_bytes_per_s(root=tmp_path) is None
