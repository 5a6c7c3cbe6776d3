"""What control groups leave a process: as files of a folder that stands in for /sys/fs/cgroup."""

import os
from pathlib import Path

import pytest

from bench import machine
from bench.core import control_group

MIB = 2**20
V2, V1 = "0::/job/step\n", "9:name=systemd:/job\n4:memory:/job/step\n1:cpu,cpuacct:/job/step\n0::/\n"
IN_CONTAINER = "4:memory:/docker/1234\n1:cpu,cpuacct:/docker/1234\n"


def laid_out(folder: Path, own: str, files: dict[str, str]) -> tuple[str, str]:
    for name, text in files.items():
        (folder / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "root" / name).write_text(text + "\n")
    (folder / "own").write_text(own)
    return str(folder / "root"), str(folder / "own")


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        (V2, {"job/step/cpu.max": "max 100000"}, None),
        (V2, {"job/step/cpu.max": "max 100000", "job/cpu.max": "150000 100000"}, 1.5),
        (V2, {"job/step/cpu.max": "50000 100000", "job/cpu.max": "150000 100000"}, 0.5),
        (V2, {"cpu.max": "250000 100000"}, 2.5),
        (V1, {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"}, None),
        (V1, {"cpu/job/cpu.cfs_quota_us": "200000", "cpu/job/cpu.cfs_period_us": "100000"}, 2.0),
        (IN_CONTAINER, {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3.0),
        (V2, {"job/step/cpu.max/folder": "which nobody can read as a file"}, None),
        ("", {}, None),
    ],
)
def test_cpu_time(tmp_path: Path, own: str, files: dict[str, str], quota: float | None) -> None:
    assert control_group.cpu_quota(*laid_out(tmp_path, own, files)) == quota


@pytest.mark.parametrize(
    ("own", "limit", "used", "cache", "unlimited"),
    [
        (V2, "memory.max", "memory.current", "inactive_file", "max"),
        (V1, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", 2**63 - 4096),
    ],
)
def test_memory(tmp_path: Path, own: str, limit: str, used: str, cache: str, unlimited: object) -> None:
    """With the file cache that the kernel drops when it needs room."""
    folder = "job" if own == V2 else "memory/job/step"
    limit, used = f"{folder}/{limit}", f"{folder}/{used}"
    files = {limit: str(64 * MIB), used: str(60 * MIB), f"{folder}/memory.stat": f"anon 7\n{cache} {20 * MIB}"}
    where = laid_out(tmp_path, own, files)
    assert control_group.memory_limit_bytes(*where) == 64 * MIB
    assert control_group.available_memory_bytes(*where) == 24 * MIB
    where = laid_out(tmp_path, own, files | {limit: str(unlimited)})
    assert control_group.memory_limit_bytes(*where) is None
    assert control_group.available_memory_bytes(*where) > 64 * MIB


@pytest.mark.parametrize(("quota", "cores", "taken"), [(None, 4, 3), (2.9, 2, 1), (0.5, 1, 0), (16.0, 4, 3)])
def test_cores_that_can_be_busy(quota: float | None, cores: int, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``taken``: how many of them are, where others keep 3 of the 4 busy."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(control_group, "cpu_quota", lambda: quota)
    assert machine.cores() == machine.here(())[0].cores == cores
    assert machine.foreign_cores(busy_s=30.0, wall_s=10.0) == taken
