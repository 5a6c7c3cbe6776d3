"""The things that people add, one file each: a scenario, a strategy, a switch, a workload; a site takes its names from
``bench.seams.site``.

Standard library alone.
"""

from bench.core.errors import RequestError
from bench.seams.recipe import Recipe, WorkRecipe, ddp_recipe
from bench.seams.scenario import Scenario
from bench.seams.strategy import DDP, Implementation, Rank, Strategy, one_rank, one_rank_for_all, rank_per_device
from bench.seams.switch import Switch
from bench.seams.workload import Workload

__all__ = [
    "DDP",
    "Implementation",
    "Rank",
    "Recipe",
    "RequestError",
    "Scenario",
    "Strategy",
    "Switch",
    "WorkRecipe",
    "Workload",
    "ddp_recipe",
    "one_rank",
    "one_rank_for_all",
    "rank_per_device",
]
