"""The fp32 training that the numerics of every scenario are held against."""

from bench.experiments import resume
from bench.experiments.lab import Lab
from bench.experiments.launch import Performed, perform
from bench.plan import reference


def train(lab: Lab) -> None:
    """Train it for the numbers of replicas that the launches really had, unless the run has it already."""
    if resume.done(lab.writer.document).reference:
        return
    good = [launch for launch in lab.writer.document["launches"] if launch["status"] == "ok"]
    counts = tuple(sorted({launch["effective"]["replicas"] for launch in good}))
    if not counts:
        return
    job = reference(lab.request, counts, lab.next_launch(), lab.site.hosts)

    def keep(done: Performed) -> str:
        about = {
            "launch": job.launch,
            "replica_counts": counts,
            "status": done.record.status,
            "reason": done.record.reason,
            "wall_s": done.record.wall_s,
            "half": job.half,
            "unit_roundoff": done.results[0]["unit_roundoff"] if done.results else None,
        }
        lab.writer.add_reference(about, **done.tables)
        return done.record.reason or f"fp32 in {done.record.wall_s:.0f} s"

    perform(job, lab, "training", keep)
