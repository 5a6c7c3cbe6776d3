"""One profiled launch of each scenario, kept apart from the measured ones."""

import os
from dataclasses import replace

from bench.core.codec import decode
from bench.core.job import Job
from bench.experiments.lab import Lab
from bench.experiments.launch import Performed, perform, where_to_look
from bench.experiments.plan import job_of
from bench.experiments.rows import Results, Rows
from bench.runs.document import RunDocument
from bench.runs.experiments import NO_KERNELS, NO_NCCL, Diagnosis, DiagnosticRecord, Look, NcclPath, Profile
from bench.seams.discover import Found
from bench.seams.experiment import Experiment


def launch(found: Found, repeat: int, lab: Lab) -> None:
    trace = os.path.join(lab.writer.path, "traces", f"{found.name}-rank{{rank}}.json.gz") if lab.request.trace else ""
    job = job_of(lab.request, found, lab.next_launch(), 0, lab.site.hosts)

    def keep(done: Performed) -> str:
        lab.writer.add_to(Diagnosis, DiagnosticRecord.of(done.record, looks=looks(done)), **done.tables)
        return where_to_look(done.record) or "profiled"

    perform(replace(job, purpose="diagnose", trace=trace), lab, "diagnosing", keep, diagnostic_rows)


def looks(done: Performed) -> tuple[Look, ...]:
    """The diagnosis of each rank."""
    return tuple(
        Look(
            reasons={name: of["reason"] for name, of in result["probes"].items()},
            profile=decode(Profile, result["profile"], "profile"),
            nccl=decode(NcclPath, result["nccl"], "nccl") if "nccl" in result else NO_NCCL,
        )
        for result in done.results
    )


def diagnostic_rows(job: Job, results: Results, partial: Results) -> dict[str, Rows]:
    rows: Rows = []
    for result in results:
        for probe, of in result["probes"].items():
            head = {"launch": job.launch, "scenario": job.scenario, "rank": result["rank"], "look": probe}
            rows += [{**head, "step": step, **values} for step, values in enumerate(of["rows"])]
    return {"diagnostics": rows}


def sentences(document: RunDocument) -> list[str]:
    """The largest part of each scenario's profiled steps, and where the traces are."""
    shares, unseen, traces = list[str](), list[str](), list[str]()
    for one in document.begun(Diagnosis).launches:
        for look in one.looks[:1]:
            largest = max(look.profile.categories, key=look.profile.categories.__getitem__)
            if whole := sum(look.profile.categories.values()):
                shares.append(f"{one.scenario} {100 * look.profile.categories[largest] / whole:.0f} % on {largest}")
            else:
                unseen.append(one.scenario)
        traces += [look.profile.trace for look in one.looks if look.profile.trace]
    lines = [f"Profiled steps spend most on one thing: {'; '.join(shares)} (the page has all)."] if shares else []
    lines += [f"What steps of {', '.join(unseen)} are spent on is unknown: {NO_KERNELS}."] if unseen else []
    where = os.path.dirname(traces[0]) if traces else ""
    return [*lines, *([f"Traces for ui.perfetto.dev: {where} ({len(traces)} files)"] if traces else [])]


EXPERIMENT = Experiment(
    record=Diagnosis,
    rounds=lambda request, strategy: int(request.diagnose),
    launch=launch,
    launches="with a profiler",
    order=1,
    sentences=lambda run: sentences(run.document),
)
