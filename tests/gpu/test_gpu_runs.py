"""Whole runs on GPUs: the ten scenarios against the fp32 reference, and what diagnostic launches show.

Needs no GPU to itself.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ON_GPU, PRETENDED, measured, measures_a_gpu

from bench.analyse.communication import communication, data_parallel
from bench.analyse.parity import CANNOT_TELL, NOT_FINITE, SAME, WITHIN_HALF
from bench.runs.experiments import Diagnosis
from bench.runs.reader import Run
from bench.seams import discover
from bench.sites.local import WorkerHost
from bench.worker.bandwidth import SIZES

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def whole_run(
    host: WorkerHost, folder: Path, scenarios: tuple[str, ...], devices: tuple[str, ...], **changes: Any
) -> Run:
    small = {**ON_GPU, "iters": 12, "impl": "native"} | ({"global_batch": 24, "iters": 3} if PRETENDED else {})
    small["force"] = True  # other tests may be on the GPU: nothing here is a result
    of_gpus = {"device": "cuda", "devices": devices, "replicas": len(devices)}
    return measured(host, folder, scenarios, **(small | of_gpus | changes))


@pytest.fixture(scope="module")
def all_ten(cuda_host: WorkerHost, tmp_path_factory: pytest.TempPathFactory, gpus: tuple[str, ...]) -> Run:
    return whole_run(cuda_host, tmp_path_factory.mktemp("ten"), discover.DEFAULT, gpus)


@pytest.mark.parametrize("scenario", discover.DEFAULT)
def test_every_scenario_trains_the_same_model(all_ten: Run, scenario: str) -> None:
    """fp32 (with TF32, as torch has it), O1 and O2 within the bounds; O3, which has neither master weights nor a loss
    scale, may be found to diverge, but not to be unknown. Where the first loss scale was too high, the run says that it
    cannot tell.
    """
    (row,) = [row for row in all_ten.document.parity if row.scenario == scenario]
    too_high = row.verdict is None and "the loss scaler skipped" in (row.reason or "")
    if scenario.endswith("_o3"):
        assert row.verdict not in (None, NOT_FINITE), row
    else:
        too_few = PRETENDED and row.verdict == CANNOT_TELL  # images, so that it takes minutes and not hours
        assert row.verdict in (SAME, WITHIN_HALF) or too_high or too_few, row


@pytest.fixture(scope="module")
def one_gpu(cuda_host: WorkerHost, tmp_path_factory: pytest.TempPathFactory, gpus: tuple[str, ...]) -> Run:
    folder = tmp_path_factory.mktemp("one")
    return whole_run(cuda_host, folder, ("single", "ddp", "ddp_o1"), gpus[:1], diagnose=True, trace=True, parity=False)


@measures_a_gpu
def test_a_diagnostic_launch_shows_where_the_time_goes(one_gpu: Run) -> None:
    rows = one_gpu.diagnostics
    for scenario in ("ddp", "ddp_o1"):
        mine = rows[rows["scenario"] == scenario]
        assert mine[mine["look"] == "pairs"].groupby("synchronised").size().nunique() == 1
        logged = mine[mine["look"] == "logger"]
        assert len(logged) and (logged["compute_ms"] > 0).all()
        assert (logged[["comm_ms", "overlap_ms"]] >= 0).all(axis=None)
    table = communication(one_gpu.document, rows).set_index("scenario")
    assert table.loc["single", "reason"] == "one process: there is nothing to synchronise"
    costs = {}
    for launch in one_gpu.document.begun(Diagnosis).launches:
        profile = launch.looks[0].profile
        costs[launch.scenario] = profile.categories
        assert launch.status == "ok" and profile.categories["convolutions"] > 0
        assert profile.trace is not None and Path(profile.trace).is_file()
    assert costs["ddp_o1"]["casts"] > costs["ddp"]["casts"] and costs["ddp_o1"]["loss scaling"] > 0


@measures_a_gpu
def test_the_parts_of_dataparallel_on_two_gpus(cuda_host: WorkerHost, tmp_path: Path, gpus: tuple[str, ...]) -> None:
    if len(gpus) < 2:
        pytest.skip("needs two GPUs: on one, DataParallel makes no replicas")
    run = whole_run(cuda_host, tmp_path, ("dp",), gpus[:2], diagnose=True)
    (row,) = data_parallel(run.diagnostics).to_dict("records")
    assert all(row[f"{part}_ms"] > 0 for part in ("scatter", "replicate", "parallel_apply", "gather"))
    assert row["parallel_apply_ms"] > row["gather_ms"], "computing takes longer than handing a few numbers over"


@measures_a_gpu
def test_nccl_names_its_algorithm_for_each_size(cuda_host: WorkerHost, tmp_path: Path, gpus: tuple[str, ...]) -> None:
    if len(gpus) < 2:
        pytest.skip("needs two GPUs: one has nobody to exchange with")
    run = whole_run(cuda_host, tmp_path, ("ddp",), gpus[:2], diagnose=True, parity=False)
    (launch,) = run.document.begun(Diagnosis).launches
    path = launch.looks[0].nccl
    sizes = [size for name, of in path.algorithms.items() if name.startswith("AllReduce ") for size in of]
    assert path.transports and min(sizes) <= SIZES[0] and max(sizes) >= SIZES[-1], path.reason
