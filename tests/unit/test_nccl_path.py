"""The way that NCCL took, from lines as it logs them."""

import os
from pathlib import Path

import pytest

from bench.worker import nccl_path

LOG = """\
node1:7:9 [0] NCCL INFO NET/IB : No device found.
node1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node1:7:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
node1:7:9 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0
node1:7:9 [0] NCCL INFO AllReduce: 4 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
node1:7:9 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}
node1:7:9 [0] NCCL INFO AllReduce: 2097152 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
"""


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in nccl_path.VARIABLES:
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)


def test_transports_and_algorithms() -> None:
    log = nccl_path.listen()
    with open(os.environ["NCCL_DEBUG_FILE"], "w") as file:
        file.write(LOG)
    assert nccl_path.read(log) == {
        "transports": {"P2P/CUMEM": 2, "NET/Socket/0": 1},
        "algorithms": {"AllReduce RING/LL": [4, 1048576], "AllReduce NVLS/SIMPLE": [2097152, 2097152]},
        "reason": None,
    }


def test_nothing_is_left_of_a_rank_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never reads the log then."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    log = nccl_path.listen()
    assert log is not None and not [*tmp_path.iterdir()]
    os.close(log)


def test_a_log_without_channels_is_unknown() -> None:
    assert "names no channel" in nccl_path.read(nccl_path.listen())["reason"]


def test_the_log_of_the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    assert nccl_path.listen() is None and os.environ["NCCL_DEBUG"] == "WARN"
    assert "NCCL_DEBUG is set" in nccl_path.read(None)["reason"]
