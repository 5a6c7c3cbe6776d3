"""What people add, one file each: a scenario, a strategy, a workload, a site. Standard library alone."""

from bench.core.errors import RequestError
from bench.core.records import Job
from bench.seams.scenario import Scenario
from bench.seams.site import Connected, Options, Outcome, Site
from bench.seams.strategy import Implementation, Rank, Strategy, one_rank, one_rank_for_all, rank_per_device
from bench.seams.workload import Workload

__all__ = [
    "Connected",
    "Implementation",
    "Job",
    "Options",
    "Outcome",
    "Rank",
    "RequestError",
    "Scenario",
    "Site",
    "Strategy",
    "Workload",
    "one_rank",
    "one_rank_for_all",
    "rank_per_device",
]
