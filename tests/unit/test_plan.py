"""From a request to launches: order, batch, threads, what is refused, and which runs are the same work."""

import re
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from conftest import launches, one_host, request_for
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import refusal
from standin.workloads import BUILT_IN, task

from bench.core.errors import RequestError
from bench.core.job import Training
from bench.core.records import Host
from bench.experiments import obstacles
from bench.experiments.obstacles import drives_several_gpus
from bench.experiments.plan import BYTES_PER_RANK, BYTES_PER_STEP, Request, check_examples, check_memory, global_batch
from bench.experiments.record import blank
from bench.seams import discover, switching
from bench.seams.discover import Found

GIB = 2**30
SOME = settings(max_examples=30, deadline=None)
ALL = tuple(switching.load(*discover.resolve(name)) for name in discover.DEFAULT)
BY_NAME = {found.name: found for found in ALL}

some_scenarios = st.lists(st.sampled_from(ALL), min_size=1, unique_by=lambda found: found.name)


def request(**changes: Any) -> Request:
    settings = {name: changes.pop(name) for name in ("model", "image_size") if name in changes}
    asked = task(changes.get("device", "cpu"), **settings)
    return replace(request_for(ALL, task=asked, warmup=2, iters=10), **changes)


def named(*names: str) -> list[Found]:
    return [BY_NAME[name] for name in names]


def test_every_other_round_goes_backwards() -> None:
    plan = launches(request(launches=3), named("single", "ddp", "ddp_o2"), one_host(2))
    there = ["single", "ddp", "ddp_o2"]
    assert [planned.found.name for planned in plan] == [*there, *reversed(there), *there]
    assert [planned.launch for planned in plan] == list(range(9))
    assert [planned.repeat for planned in plan] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("device", "replicas", "batch"),
    [("cpu", 1, 8), ("cpu", 2, 8), ("cpu", 3, 6), ("cpu", 8, 8), ("cpu", 9, 9), ("cuda", 3, 126), ("cuda", 4, 512)],
)
def test_the_default_batch_is_divisible(device: str, replicas: int, batch: int) -> None:
    """On four GPUs and more each gets the default batch: a share of it would leave all to the speed of Python."""
    assert global_batch(None, None, BUILT_IN.workload, device, ALL, replicas) == batch


@pytest.mark.parametrize(
    ("scenarios", "replicas", "gib", "batch"),
    [
        *(("all", 2, 80, 128), ("all", 2, 32, 128), ("all", 1, 24, 64), ("all", 3, 24, 63), ("all", 2, 8, 32)),
        *(("ddp", 2, 16, 128), ("ddp", 4, 8, 128), ("all", 2, 0.1, 2), ("all", 2, None, 128)),
    ],
)
def test_the_default_batch_fits_the_smallest_gpu(scenarios: str, replicas: int, gib: float | None, batch: int) -> None:
    """In the scenario that puts most of it on one GPU: ``single`` has all of it there."""
    found, gpu_mib = ALL if scenarios == "all" else named(scenarios), None if gib is None else gib * 1024
    assert global_batch(None, None, BUILT_IN.workload, "cuda", found, replicas, gpu_mib) == batch
    assert global_batch(128 * replicas, None, BUILT_IN.workload, "cuda", found, replicas, gpu_mib) == 128 * replicas
    assert global_batch(None, 32, BUILT_IN.workload, "cuda", named("single"), 1, gpu_mib) == 32


@pytest.mark.parametrize(
    ("scenario", "gpus", "devices"),
    [("single", 4, 1), ("dp", 4, 4), ("ddp_accumulate_8", 2, 2), ("ddp_two_devices", 4, 4), ("parameter_server", 0, 2)],
)
def test_devices_that_train_are_counted(scenario: str, gpus: int, devices: int) -> None:
    """A launch's MFU is over the peak of as many: not of micro-batches, nor of processes."""
    found, uuids = [switching.load(*discover.resolve(scenario))], tuple(f"GPU-{number}" for number in range(gpus))
    asked = request(device="cuda", devices=uuids, replicas=gpus) if gpus else request(replicas=2)
    (planned,) = launches(asked, found, one_host(8, *uuids))
    assert blank(planned.job).devices == devices
    assert drives_several_gpus(asked, found[0].strategy) is (scenario in ("dp", "ddp_two_devices"))


def test_replicas_share_the_batch_and_micro_batches_are_no_devices() -> None:
    assert global_batch(None, 32, BUILT_IN.workload, "cuda", ALL, 3) == 96
    assert global_batch(None, 32, BUILT_IN.workload, "cuda", named("single"), 3) == 32
    assert global_batch(7, None, BUILT_IN.workload, "cpu", named("single"), 2) == 7
    eight = [switching.load(*discover.resolve("ddp_accumulate_8"))]
    assert global_batch(None, None, BUILT_IN.workload, "cuda", [*ALL, *eight], 1) == 128
    assert global_batch(None, None, BUILT_IN.workload, "cpu", eight, 2) == 16
    assert global_batch(None, 16, BUILT_IN.workload, "cuda", [*ALL, *eight], 2) == 32
    with pytest.raises(RequestError, match="4 images are not divisible by 16") as caught:
        global_batch(None, 2, BUILT_IN.workload, "cuda", eight, 2)
    assert (caught.value.option, caught.value.remedy) == ("--batch-per-rank", "use 8")


def test_a_batch_that_micro_batches_cannot_share_is_for_the_others() -> None:
    eight = [switching.load(*discover.resolve("ddp_accumulate_8"))]
    assert global_batch(100, None, BUILT_IN.workload, "cpu", [*ALL, *eight], 2) == 100
    asked = request(replicas=2, global_batch=100)
    why_not = obstacles.of_each((*ALL, *eight), asked)
    assert [name for name, why in why_not.items() if why] == ["ddp_accumulate_8"]
    assert "--global-batch that is divisible by 16" in (why_not["ddp_accumulate_8"] or "")
    for batch in (100, 7):  # nobody can, or not even devices
        with pytest.raises(RequestError, match=f"{batch} images are not divisible by 16"):
            global_batch(batch, None, BUILT_IN.workload, "cpu", eight if batch == 100 else [*ALL, *eight], 2)


@given(asked=st.integers(1, 10**6), replicas=st.integers(1, 64))
def test_an_uneven_batch_is_refused_with_the_nearest(asked: int, replicas: int) -> None:
    if asked % replicas == 0:
        assert global_batch(asked, None, BUILT_IN.workload, "cpu", ALL, replicas) == asked
        return
    error = refusal(lambda: global_batch(asked, None, BUILT_IN.workload, "cpu", ALL, replicas))
    assert error.option == "--global-batch"
    suggested = [int(number) for number in re.findall(r"\d+", error.remedy)]
    assert suggested
    for batch in suggested:
        assert abs(batch - asked) < replicas
        assert global_batch(batch, None, BUILT_IN.workload, "cpu", ALL, replicas) == batch


@SOME
@given(cores=st.integers(1, 256), replicas=st.integers(1, 64))
def test_processes_share_the_cores_and_the_batch(cores: int, replicas: int) -> None:
    batch = global_batch(None, None, BUILT_IN.workload, "cpu", ALL, replicas)
    for planned in launches(request(replicas=replicas, global_batch=batch), ALL, one_host(cores)):
        processes = 1 if planned.found.name in ("single", "dp") else replicas
        assert planned.job.processes == processes
        assert planned.job.replicas * planned.job.batch_per_replica == batch
        for rank in planned.job.ranks:
            assert rank.threads == max(1, cores // processes)
            assert rank.threads * processes <= max(cores, processes)


def test_single_has_the_first_device() -> None:
    gpus = ("GPU-c", "GPU-a", "GPU-b")
    plan = launches(request(device="cuda", devices=gpus, replicas=3, global_batch=126), ALL, one_host(16, *gpus))
    for planned in plan:
        assert planned.job.devices_on("node1") == (("GPU-c",) if planned.found.name == "single" else gpus)


def test_data_parallel_takes_the_whole_batch_on_a_cpu() -> None:
    """There it is a pass-through: with the examples in the order of ``single``, both round alike."""
    gpus = ("GPU-a", "GPU-b")
    for asked, parts in ((request(replicas=2), 1), (request(device="cuda", devices=gpus, replicas=2), 2)):
        assert [planned.job.replicas for planned in launches(asked, named("dp"), one_host(2, *gpus))] == [parts]


def test_ranks_count_from_0_on_each_host() -> None:
    hosts = (Host(name="a", cores=8, devices=("GPU-0", "GPU-1")), Host(name="b", cores=2, devices=("GPU-2",)))
    named_ddp = named("ddp")
    gpus = launches(request(device="cuda", devices=("GPU-2", "GPU-0", "GPU-1"), replicas=3), named_ddp, hosts)
    cpu = launches(request(replicas=3), named_ddp, hosts)
    placed = [[(rank.host, rank.local_rank, rank.threads) for rank in plan[0].job.ranks] for plan in (gpus, cpu)]
    assert placed[0] == [("b", 0, 2), ("a", 0, 4), ("a", 1, 4)]
    assert placed[1] == [("a", 0, 4), ("a", 1, 4), ("b", 0, 2)]
    assert gpus[0].job.devices_on("a") == ("GPU-0", "GPU-1") and gpus[0].job.devices_on("b") == ("GPU-2",)
    found = obstacles.of_each(tuple(named("dp") + named("ddp")), request(replicas=3, global_batch=9), None, hosts)
    assert found["ddp"] is None and "would drive the devices of 2 hosts" in (found["dp"] or "")


def test_half_follows_the_device_or_the_scenario() -> None:
    o2 = BY_NAME["ddp_o2"]
    bf16 = replace(o2, half="bf16")
    gpu = request(device="cuda", devices=("GPU-a",), replicas=1)
    assert [launches(gpu, [found], one_host(1, "GPU-a"))[0].job.half for found in (o2, bf16)] == ["fp16", "bf16"]
    assert launches(request(), [o2], one_host(1))[0].job.half == "bf16"
    assert "half" not in asdict(gpu.workload), "the type is a scenario's, and what all train has none"


def test_steps_may_take_a_quarter_of_the_memory() -> None:
    one_rank = named("single")
    free = 4 * BYTES_PER_STEP * 100
    check_memory(request(warmup=2, iters=98), one_rank, free)
    error = refusal(lambda: check_memory(request(warmup=2, iters=99), one_rank, free))
    assert (error.option, error.remedy) == ("--iters", "use at most 98")
    two_ranks = request(warmup=2, iters=8 * BYTES_PER_RANK // 4 // BYTES_PER_STEP // 2)
    assert refusal(lambda: check_memory(two_ranks, named("ddp"), 8 * BYTES_PER_RANK)).option == "--iters"


@pytest.mark.parametrize("replicas", [185, 3000])
def test_more_ranks_than_memory_holds_are_refused(replicas: int) -> None:
    check_memory(request(replicas=184, global_batch=184), ALL, 23 * GIB)
    error = refusal(lambda: check_memory(request(replicas=replicas, global_batch=replicas), ALL, 23 * GIB))
    assert (error.option, error.remedy) == ("--ranks/--nproc", "use at most 184")
    check_memory(request(), named("single"), BYTES_PER_RANK - 1)


@settings(max_examples=60, deadline=None)
@given(
    scenarios=some_scenarios,
    warmup=st.integers(1, 10**6),
    iters=st.integers(1, 10**6),
    rounds=st.integers(1, 10**6),
    free_gib=st.integers(2, 64),
)
def test_suggestions_are_accepted(scenarios: list[Found], warmup: int, iters: int, rounds: int, free_gib: int) -> None:
    asked = request(warmup=warmup, iters=iters, launches=rounds)
    try:
        check_memory(asked, scenarios, free_gib * GIB)
    except RequestError as error:
        field = error.option.removeprefix("--")
        suggested = re.sub(r"\D", "", error.remedy)
        if suggested:
            assert 1 <= int(suggested) < getattr(asked, field)
            check_memory(replace(asked, **{field: int(suggested)}), scenarios, free_gib * GIB)


@pytest.mark.parametrize("example_bytes", [12 * 10**12, None])
def test_an_example_needs_less_than_half_of_the_memory(example_bytes: int | None) -> None:
    assert refusal(lambda: check_examples(request(), example_bytes, 16 * GIB)).option == "--image-size"


@SOME
@given(example_bytes=st.integers(1, 10**8), per_rank=st.booleans())
def test_the_batch_that_is_suggested_is_accepted(example_bytes: int, per_rank: bool) -> None:
    asked = request(global_batch=10**12, per_rank=per_rank)
    error = refusal(lambda: check_examples(asked, example_bytes, 16 * GIB))
    assert error.option == ("--batch-per-rank" if per_rank else "--global-batch")
    batch = int(re.sub(r"\D", "", error.remedy)) * (asked.replicas if per_rank else 1)
    check_examples(replace(asked, global_batch=batch), example_bytes, 16 * GIB)


OTHER: dict[str, Any] = dict.fromkeys(("sha256", "data_sha256", "code_sha256"), "0" * 64)
OTHER |= {"device": "cuda", "settings": {"model": "resnet50"}, "data": "/elsewhere", "examples": 60_000}
OTHER |= {"workers": 0, "prefetch": 2, "units_per_example": 1024}
"""Other values of the fields whose value cannot just be doubled."""

NAMES = ("file", "title", "unit_short", "data")
"""Fields that only say what to call it and where it is."""


@pytest.mark.parametrize("field", [field.name for field in fields(Training)])
def test_every_field_of_the_training_changes_the_hash(field: str) -> None:
    workload = request().workload
    value = getattr(workload, field)
    changed = replace(workload, **{field: OTHER[field] if field in OTHER else value * 2 or 1})
    assert (changed.hash() == workload.hash()) is (field in NAMES)


def test_the_hash_is_the_one_that_stored_runs_have() -> None:
    """Runs on disk are compared by it: when it has to change, the schema version does too. Those of older versions say
    nothing of the workload's code."""
    stored = "7cc8480cc1cd2f27578c9a1945e2e71d6f4f369f4fb9a72f7f2315f74af867c5"
    assert replace(request().workload, code_sha256=None).hash() == stored
