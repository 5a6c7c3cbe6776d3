"""The fp32 training that the numerics of every scenario are held against."""

from bench.experiments import resume
from bench.experiments.lab import Lab
from bench.experiments.launch import Performed, perform
from bench.plan import reference
from bench.runs.document import ReferenceRecord


def train(lab: Lab) -> None:
    """Train it for the numbers of replicas that the launches really had, unless the run has it already."""
    if resume.done(lab.writer.document).reference:
        return
    counts = tuple(sorted({launch.effective.replicas for launch in lab.writer.document.good if launch.effective}))
    if not counts:
        return
    job = reference(lab.request, counts, lab.next_launch(), lab.site.hosts)

    def keep(done: Performed) -> str:
        about = ReferenceRecord(
            launch=job.launch,
            replica_counts=counts,
            status=done.record.status,
            reason=done.record.reason,
            wall_s=done.record.wall_s,
            half=job.half,
            unit_roundoff=done.results[0]["unit_roundoff"] if done.results else None,
        )
        lab.writer.add_reference(about, **done.tables)
        return done.record.reason or f"fp32 in {done.record.wall_s:.0f} s"

    perform(job, lab, "training", keep)
