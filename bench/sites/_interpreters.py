"""Several interpreters on this host, each with a site of its own: a launch runs where its environment is."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from bench.core.job import Job, Training
from bench.seams.site import Connected, Event, Outcome


class Interpreters:
    """``sites``: by environment. ``description``: of the first, and under ``environments`` that of each."""

    def __init__(self, sites: Mapping[str, Connected]) -> None:
        self.sites = sites
        first = next(iter(sites.values()))
        self.hosts, self.log, self.description = first.hosts, first.log, Event()

    def __enter__(self) -> "Interpreters":
        with ExitStack() as opened:
            for site in self.sites.values():
                opened.enter_context(site)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    def wait_until_ready(self) -> dict[str, object]:
        for site in self.sites.values():
            site.wait_until_ready()
        return self._described()

    def prepare(self, workload: Training) -> None:
        for site in self.sites.values():
            site.prepare(workload)
        self._described()

    def _described(self) -> Event:
        environments = {name: site.description for name, site in self.sites.items()}
        self.description = {**next(iter(environments.values())), "environments": environments}
        return self.description

    def perform(self, job: Job, on_event: Callable[[Event], None]) -> Outcome:
        assert job.environment is not None
        return self.sites[job.environment].perform(job, on_event)
