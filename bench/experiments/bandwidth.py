"""All-reduces by size: launches that do nothing else, in a run of ``bench scale`` or for ``bench doctor``."""

import tempfile
from dataclasses import replace

from bench.console import passing
from bench.core.codec import decode
from bench.core.job import Job
from bench.experiments import lab, record
from bench.experiments.launch import execute
from bench.experiments.plan import Request
from bench.experiments.plan.scaling import Point, job_at
from bench.experiments.rows import Results
from bench.machine.nvml import link_between
from bench.runs.experiments import AllReduces, BandwidthRecord, Transport
from bench.runs.launches import LaunchRecord
from bench.seams.discover import Found


def of_this_machine(request: Request, found: Found) -> BandwidthRecord:
    """A launch over all chosen devices that leaves no run behind."""
    with (
        lab._alone(request, lab.Start(out="")) as (locks, _),
        lab._site(request, locks) as site,
        tempfile.TemporaryDirectory() as logs,
    ):
        with passing("importing torch"):
            site.wait_until_ready()
        point = Point(count=request.replicas, global_batch=request.replicas)
        job = job_at(request, found, point, 1, site.hosts, "bandwidth")
        with passing(f"all-reduces over {job.processes} ranks"):
            done = execute(job, site, logs, lambda event: None)
    return of(job, record.of(job, done, {}), done.outcome.results)


def of(job: Job, launch: LaunchRecord, results: Results) -> BandwidthRecord:
    """The record of a launch from the reports of its ranks: of each sample the slowest rank."""
    reports = [result["bandwidth"] for result in results] if launch.status == "ok" else []
    sizes, left_out = [], reports[0]["left_out"] if reports else None
    for of_ranks in zip(*(one["sizes"] for one in reports), strict=True):
        slowest_ms = tuple(map(max, zip(*(one["times_ms"] for one in of_ranks), strict=True)))
        sizes.append(AllReduces(**of_ranks[0] | {"times_ms": slowest_ms}))
    transport = _transport(job, results[0]["transport"]) if reports else None
    return BandwidthRecord.of(launch, transport=transport, sizes=tuple(sizes), left_out=left_out)


def _transport(job: Job, reported: dict[str, object]) -> Transport:
    """The transport that rank 0 reports. NCCL does not say what it goes over, but the driver knows how GPUs of a host
    are linked."""
    transport = decode(Transport, reported, "transport")
    if transport.backend != "nccl" or len({rank.host for rank in job.ranks}) > 1:
        return transport
    interface, mbit = link_between([uuid for rank in job.ranks for uuid in rank.devices])
    return replace(transport, interface=interface, nominal_mbit=mbit)
