"""A rank's plan for its job: the parts, the strategy, and how it reports."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

import torch

from bench.core.errors import BenchError
from bench.core.job import Job
from bench.seams import discover
from bench.seams.strategy import APEX_MODULES, Strategy
from bench.worker import apex, data, effective, live, loop, workload
from bench.worker.session import Parts, Session

Report = Callable[..., Callable[[int], None]]
"""``report(phase, done, of)``: a phase begins after ``done`` steps of ``of``. Returns what is called with each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parts that this rank builds from, and the strategy with the module that defines it."""

    parts: Parts
    strategy: Strategy
    module: ModuleType
    probe_seed: int | None = None

    @classmethod
    def of(cls, job: Job, rank: int, device: torch.device) -> "Plan":
        strategy, module = discover.load_strategy(job.strategy, job.strategy_file)
        cuda, problems = device.type == "cuda", job.apex_problems
        if problems is None:  # under a foreign launcher, where this rank looks itself if it has a GPU
            problems = apex.probe(job.apex_path)["problems"] if cuda else dict.fromkeys(APEX_MODULES)
        amp, implementation, problem = apex.implementations(strategy, job, cuda=cuda, problems=problems)
        if problem is not None:
            raise BenchError(problem)
        if "apex" in (amp, implementation):
            apex.add_to_path(job.apex_path)
        shown = replace(job, probe_seed=None)  # the scenario is not to know what it will be asked
        parts = Parts(job=shown, rank=rank, device=device, implementation=implementation, amp=amp)
        return cls(parts=parts, strategy=strategy, module=module, probe_seed=job.probe_seed)

    def load(self) -> Callable[[], data.Batch]:
        """The loader of this process: the parts of the replicas that it trains."""
        job = self.parts.job
        return data.feeds(job.workload, job.replicas, [job.parts_of(self.parts.rank)], self.parts.device)

    def build(self) -> Session:
        session = self.module.build(self.parts, **self.parts.job.options)
        if not isinstance(session, Session):
            what = f"build(parts) of {self.parts.job.strategy_file} returned {type(session).__name__}"
            raise TypeError(f"{what}; return a Session, such as parts.session(wrap=...)")
        return session

    def warmed_up(self, report: Report) -> tuple[Callable[[], data.Batch], Session, loop.Timings, dict[str, object]]:
        """A loader, a session that has done its warm-up, the timings of that, and what ran in it."""
        load, session = self.load(), self.build()
        watch = live.TypeWatch(session.model)
        steps, device = self.parts.workload.warmup, self.parts.device
        timings = loop.run_window(session, load, steps, device=device, on_step=report("warmup"))
        if not session.compiled:  # or it would be compiled again
            watch.stop()
        return load, session, timings, self.what_ran(session, watch)

    def what_ran(self, session: Session, watch: live.TypeWatch) -> dict[str, object]:
        """Read off the live objects. Raises :class:`BenchError` where the scenario says something else."""
        ran = effective.read(session, self.strategy, watch)
        job = self.parts.job
        if job.ranks[self.parts.rank].role == "server":
            return ran  # which computes nothing
        wrong = effective.contradictions(ran, job, self.strategy, self.parts.implementation)
        wrong += workload.contradictions(job.workload, ran["optimizer_settings"])
        wrong += session.around.off_schedule(session.steps)
        if wrong:
            raise BenchError("what ran is not what the scenario says: " + "; ".join(wrong))
        return ran
