"""One rank of one launch: join, build, train, read what ran, send the result.

The standard variables MASTER_ADDR and MASTER_PORT say where the ranks meet.
"""

import faulthandler
import gc
import json
import os
import statistics
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from bench.core.channel import Channel, forks_die_with_parent
from bench.core.errors import BenchError
from bench.core.job import Job
from bench.seams.discover import STRATEGY
from bench.seams.execute import line_in
from bench.worker import by_fp32, fingerprint, live, loop, memory_parts, memory_probe, nccl_path, probe, restart
from bench.worker.beats import FD_VARIABLE, Beats
from bench.worker.plan import Plan, Report
from bench.worker.processes import STACK_SIGNAL

STDERR_FD = 2
STORE_FD = "BENCH_STORE_FD"
"""The listening socket on 127.0.0.1 that rank 0's rendezvous store takes over; made by bench's own launcher."""
OUT_OF_MEMORY = ("can't allocate memory", "bad_alloc", "out of memory", "status_alloc_failed", "allocation_failed")
"""In errors for want of memory that are not torch's own kind: the host's allocators, CUDA, NCCL, cuBLAS and cuDNN."""
NO_ROOM = ("unable to find an engine", "status_not_initialized", "cudnn_status_internal_error")
"""What cuBLAS and cuDNN say where a workspace, a handle or a library's code got no memory, and for other reasons."""
FULL = 0.05
"""The free share of a device below which that was the reason."""
MIXED = "got mixed torch.Tensor and DTensor"  # FSDP2's words
UNUSED = "Expected to have finished reduction in the prior iteration"  # DDP's words
LIBUV_TAKES_SOCKETS = "2.8"
"""Torch from which on the store's libuv server takes over a socket (pytorch/pytorch#150215); before, only the older."""
BINDS_BY_ITSELF = "2.15"
"""Torch from which on ``nccl`` is ``ProcessGroupNCCL2``, which has one device (pytorch/pytorch#192281)."""


def execute(job: Job, rank: int, channel: Channel, born_ns: int) -> None:
    """Do the launch as this rank and send its result to the supervisor. ``born_ns``: when this process was made
    (monotonic clock). Errors are reported with their kind and raised again, so that the log has the traceback.
    """

    pid = os.getpid()
    gc.freeze()  # each window begins with a collection, which would go through all that torch's import made

    def tell(event: str, **values: object) -> None:
        if os.getpid() == pid:
            channel.send(event=event, rank=rank, **values)

    def tell_of_thread(about: threading.ExceptHookArgs) -> None:
        threading.__excepthook__(about)
        if about.exc_value is not None and about.exc_type is not SystemExit:
            name = about.thread.name if about.thread else "a thread"
            tell("error", **_about(about.exc_value, job, rank, where=f"thread {name}: "))

    faulthandler.register(STACK_SIGNAL, file=STDERR_FD, all_threads=True)
    threading.excepthook = tell_of_thread
    forks_die_with_parent()
    tell("up", pid=pid)
    try:
        result = _train(job, rank, tell, born_ns)
        if os.getpid() != pid:
            os._exit(0)  # the scenario forked and let its child come here: there is one result of a rank
        tell("phase", phase="seal")
        text = _sealed(result)
    except BaseException as error:
        tell("error", **_about(error, job, rank))
        raise
    tell("done", result=text)


def _train(job: Job, rank: int, tell: Any, born_ns: int) -> dict[str, object]:
    purpose = None if job.purpose == "measure" else import_module(f"bench.worker.{job.purpose}")
    if job.purpose == "restart":  # the ranks are started by what this process starts
        return {"rank": rank, "pid": os.getpid(), **restart.run(job, tell)}
    device = settle(job, rank)
    nccl = job.group and device.type == "cuda" and job.purpose == "diagnose"
    heard = nccl_path.listen() if nccl else None
    tell("phase", phase="rendezvous")
    if purpose is not None and job.purpose == "exchanges":
        purpose.join()
    elif job.group:
        join(job, rank, device, _store(job, rank))
    tell("phase", phase="build")
    plan = Plan.of(job, rank, device)
    if job.purpose == "measure" and job.memory_probe:
        born_ns += memory_probe.show(tell, device)

    def report(phase: str, done: int = 0, of: int = job.steps) -> Any:
        tell("phase", phase=phase)
        return lambda step: tell("step", step=done + step, of=of)

    with by_fp32.by_fp32(job):
        result = _measure(plan, report, born_ns) if purpose is None else purpose.perform(plan, report)
    leave()
    if nccl:
        result["nccl"] = nccl_path.read(heard)
    return {"rank": rank, "pid": os.getpid(), **result}


def _measure(plan: Plan, report: Report, born_ns: int) -> dict[str, object]:
    """Warm up, measure, take one more step to look at, and read what ran off the live objects."""
    job, device = plan.parts.job, plan.parts.device
    steps, load = job.workload.warmup, plan.load()
    note = Beats(int(fd)).notes(plan.parts.rank) if (fd := os.environ.get(FD_VARIABLE)) else None
    before_mib = memory_parts.held_mib(device)
    session = plan.build()
    initial = fingerprint.checksum(session.weights())
    watch = live.TypeWatch(session.model)
    warmup = loop.run_window(session, load, steps, device=device, on_step=report("warmup"), note=note)
    barrier()
    skipped_warm = session.skipped_steps()
    warm = live.peaks(device)
    _forget_peaks(device)
    cpu_before = time.process_time()
    measured = loop.run_window(session, load, job.iters, device=device, on_step=report("measure", steps), note=note)
    cpu_s = time.process_time() - cpu_before
    report("record")
    skipped = session.skipped_steps()
    result: dict[str, object] = {
        "warmup": asdict(warmup),
        "measured": asdict(measured),
        "host_lead_ms": statistics.median(measured.lead_ms) if measured.lead_ms else None,
        "cpu_s": cpu_s,
        "first_forward_s": (warmup.start_ns[0] - born_ns) / 1e9 + (warmup.data_ms[0] + warmup.forward_ms[0]) / 1e3,
        "skipped_steps": int(skipped - skipped_warm) if skipped is not None and skipped_warm is not None else None,
        "allocator": _whole_and_steady(warm, live.peaks(device)),
        "initial_sha256": initial,
        "final_sha256": fingerprint.checksum(session.weights()),
    }
    barrier()  # until every rank has read its peaks
    report("probe")
    if not session.compiled:
        watch.all_layers(session.model)
    batch = load()
    look = memory_parts.Look(session, batch)
    if plan.probe_seed is not None:
        result["updates"] = probe.own_step(session, batch, look, main=plan.parts.rank == 0)
    else:
        look.backward(look.forward(batch))
        session.optimize()
    result["memory"] = {"before_mib": before_mib, **look.parts()}
    if plan.probe_seed is not None and job.environment is not None:
        result["own_gradients"] = probe.own_gradients(session, batch)
    result["effective"] = plan.what_ran(session, watch)
    watch.stop()
    return result


def settle(job: Job, rank: int) -> torch.device:
    """Give this process the rank's cores, threads, cuDNN setting and device; on a GPU the one whose UUID was chosen, or
    an error."""
    if (core_set := job.ranks[rank].core_set) is not None:
        part, of = core_set
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[part * len(cores) // of : (part + 1) * len(cores) // of])
    torch.set_num_threads(job.ranks[rank].threads)
    # Shapes are fixed, so cuDNN's search for algorithms falls into the warm-up. Not where one process drives several
    # GPUs: torch keeps what was found by thread (pytorch/pytorch#103939), and DataParallel starts a new thread for each
    # GPU in every forward pass, so every step would search anew.
    torch.backends.cudnn.benchmark = len(job.ranks[rank].devices) < 2
    if job.workload.device == "cpu":
        return torch.device("cpu")
    visible, expected = job.devices_on(job.ranks[rank].host), job.ranks[rank].devices[0]
    device = torch.device("cuda", visible.index(expected))
    torch.cuda.set_device(device)
    if (actual := live.device_uuid(device)) != expected:
        raise BenchError(f"local rank {job.ranks[rank].local_rank} sees GPU {actual} where {expected} was chosen")
    return device


def _store(job: Job, rank: int) -> dist.Store | None:
    """The store that the ranks meet over: a socket that the launcher bound to port 0; None without one."""
    if (fd := os.environ.get(STORE_FD)) is None:
        return None
    listening = {"is_master": True, "master_listen_fd": int(fd)} if rank == 0 else {"is_master": False}
    return dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        job.processes,
        timeout=timedelta(seconds=job.rendezvous_timeout_s),
        wait_for_workers=False,
        use_libuv=torch.__version__ >= LIBUV_TAKES_SOCKETS,
        **listening,
    )


def join(job: Job, rank: int, device: torch.device, store: dist.Store | None) -> None:
    """Form the process group over a store, or by ``env://`` without one."""
    backend, options = "gloo", dict[str, Any]()
    if device.type == "cuda" and len(job.ranks[rank].devices) < 2:
        backend, options = "nccl", {"device_id": device}
    elif device.type == "cuda":  # a group bound to one GPU refuses to communicate on a second
        backend = "nccl-legacy" if torch.__version__ >= BINDS_BY_ITSELF else "nccl"
    timeout = timedelta(seconds=job.rendezvous_timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=job.processes, timeout=timeout, **options)


LEFT: list[dist.ProcessGroup] = []
"""Groups of gloo live as long as the process: ending one, torch 2.6 holds the GIL and waits for a thread that wants it.
With newer ones nothing hung, so this can go with 2.6."""


def leave() -> None:
    barrier()
    if dist.is_initialized():
        if dist.get_backend() == "gloo":
            LEFT.append(dist.group.WORLD)
        dist.destroy_process_group()


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def _forget_peaks(device: torch.device) -> None:
    for index in range(torch.cuda.device_count() if device.type == "cuda" else 0):
        torch.cuda.reset_peak_memory_stats(index)


def _whole_and_steady(warm: dict[str, float], measured: dict[str, float]) -> dict[str, float]:
    """Peaks of the whole launch, and those of the measured steps alone: cuDNN's search, in the first step, takes
    whatever memory it finds, and torch keeps it reserved.
    """
    whole = {name: max(value, warm[name]) for name, value in measured.items()}
    of_gpus = {name: value for name, value in measured.items() if "." in name}
    return whole | {f"steady_{name.removeprefix('max_')}": value for name, value in of_gpus.items()}


def _about(error: BaseException, job: Job, rank: int, where: str = "") -> dict[str, object]:
    """The report of an error; of one for want of memory also whose it was, and how much was held."""
    kind, collateral = kind_of(error), _is_collateral(error)
    own = [job.workload.file] if job.workload.sha256 is not None else []
    own += [job.strategy_file] if os.path.dirname(job.strategy_file) != STRATEGY.folder else []
    for file in () if isinstance(error, BenchError) or collateral else own:
        if (line := line_in(file, error)) is not None:
            where += f"{file}:{line}: "
            break
    text = " ".join(str(error).split()).removesuffix(".")  # a phrase, which sentences end
    text = text if isinstance(error, BenchError) else f"{type(error).__name__}: {text}"[:500]
    if UNUSED in text:
        text = "some weights had no part in the loss, which DDP waits for; add find_unused: --scenario ddp+find_unused"
    if MIXED in text:
        why = "the model or its optimizer makes plain tensors, which torch does not mix with shards (DTensor)"
        text = f"{why}, or the loss reads weights itself, for which there is fsdp2_no_reshard: {text}"
    if "Double" in text and job.purpose in ("probe", "reference"):
        text = f"no double precision; let narrow(work) of the workload make a model whose operations have it: {text}"
    about = {"kind": kind, "reason": where + text, "collateral": kind != "oom" and collateral}
    if kind != "oom":
        return about
    work = job.workload
    name = "cpu" if work.device == "cpu" else f"cuda:{job.ranks[rank].local_rank}"
    batch = job.batch_per_replica * len(job.parts_of(rank))
    memory: dict[str, object] = {"device": name, "batch": batch, "global_batch": work.global_batch}
    if work.device == "cpu" or torch.cuda.is_initialized():
        memory["allocator"] = live.peaks(torch.device(work.device))
    unit = work.unit if work.units_per_example is None else "examples"
    reason = f"rank {rank} on {name} with {batch} {unit} (global batch {work.global_batch}): {about['reason']}"
    return {**about, "reason": reason, "memory": memory}


def kind_of(error: BaseException) -> str:
    """``oom`` for want of memory, of the host or of the GPU and in whatever words; ``error`` for all else."""
    text = str(error).lower()
    memory = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(sign in text for sign in OUT_OF_MEMORY)
    if any(sign in text for sign in NO_ROOM) and torch.cuda.is_initialized():
        with suppress(RuntimeError):  # of a device that answers nothing any more
            free, total = torch.cuda.mem_get_info()
            memory = memory or free < FULL * total
    return "oom" if memory else "error"


def _is_collateral(error: BaseException) -> bool:
    """Whether a collective failed because another rank was gone. Of gloo and of ``ProcessGroupNCCL2`` it is a plain
    ``RuntimeError``, such as "NCCL AllReduce failed".
    """
    text = str(error).lower()
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and ("gloo" in text or "nccl" in text))


def _sealed(result: Mapping[str, object]) -> str:
    return json.dumps(result)
