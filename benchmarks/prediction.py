"""Predicted against measured steps of hosts with a slow network, each host a network namespace (as root).

    sudo python benchmarks/prediction.py              # links of 50, 200 and 1000 Mbit/s, each from the other two
    sudo python benchmarks/prediction.py --counts     # 2 and 3 hosts from 4 and 6, and 4 and 6 from 2 and 3

The hosts hang on one bridge, and tbf shapes what each sends. In rounds: all-reduces alone, and of ``ddp`` and its fp16
hook a launch whose ranks exchange nothing, and one that trains. No step that was measured is in a prediction, and no
all-reduce at the speed, or over the number of hosts, that is predicted. Errors are medians over the rounds.

The layers sleep as long as a GPU might compute (``sleeping_layers.py``), so that exchanges have the cores to
themselves, as they have beside a GPU. With ``--compute`` the CPU trains, and the two slow each other down.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import paired  # noqa: F401  # puts bench on the path

from bench.analyse.all_reduce import Link, fitted, samples
from bench.analyse.predicted import predicted_step
from bench.core.codec import decode, encode
from bench.core.job import Job
from bench.core.records import Host
from bench.experiments import bandwidth, record
from bench.experiments.plan import Request
from bench.experiments.plan.scaling import Point, job_at
from bench.runs.experiments import BandwidthRecord, Exchange, ExchangesRecord
from bench.seams import discover
from bench.seams.discover import Found
from bench.verbs.sets import scenarios_of

SCENARIOS = ("ddp", "ddp_fp16_hook")
SPEEDS_MBIT = (50, 200, 1000)
COUNTS = ((2, 3), (4, 6))
"""Numbers of hosts. Each group is predicted from the other."""
BATCH = 4
"""Of a rank."""
ALLOWED = 0.10
LINK = "veth0"
"""What the interface is called in each namespace."""
PORT = 29400
"""Of the store, in a namespace that nobody else has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a round shows of this many hosts on links of this speed. By scenario: ``silent``, ranks that exchange
    nothing, and ``step_ms``, the median step of those that do."""

    mbit: int
    hosts: int
    reduced: BandwidthRecord | None
    silent: dict[str, ExchangesRecord]
    step_ms: dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--counts", action="store_true", help="predict numbers of hosts (default: speeds of the link)")
    parser.add_argument("--mbit", type=int, default=200, help="with --counts: the speed of each link (default: 200)")
    parser.add_argument("--compute", action="store_true", help="train on the CPU (default: layers that sleep)")
    parser.add_argument("--model", default="resnet18", help="of torchvision (default: resnet18)")
    parser.add_argument("--iters", type=int, default=4, help="measured steps of a launch (default: 4)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--add-to", metavar="FILE", help="keep the rounds in this file, and judge all that are in it")
    options = parser.parse_args()
    if options.serve:
        return serve()
    if os.geteuid() != 0:
        print("network namespaces need root: sudo python benchmarks/prediction.py", file=sys.stderr)
        return 2
    kept = Path(options.add_to) if options.add_to else None
    seen = decode(tuple[Seen, ...], json.loads(kept.read_text())) if kept and kept.exists() else ()
    points = [(mbit, 2) for mbit in SPEEDS_MBIT]
    if options.counts:
        points = [(options.mbit, hosts) for hosts in (1, *COUNTS[0], *COUNTS[1])]
    scenarios = scenarios_of([",".join(SCENARIOS)])
    most = max(hosts for _, hosts in points)
    request = request_of(options, scenarios, most)
    signal.signal(signal.SIGTERM, lambda *about: sys.exit(1))  # so that the namespaces go, too
    with tempfile.TemporaryDirectory() as folder, network(most) as names, served(names, Path(folder)) as servers:
        lab = Lab(request=request, scenarios=scenarios, folder=Path(folder), servers=servers)
        for repeat in range(options.rounds):
            for mbit, hosts in points[::-1] if repeat % 2 else points:
                shape(names, mbit)
                seen += (lab.seen(mbit, hosts, repeat),)
                if kept:
                    kept.write_text(json.dumps(encode(seen)))
    return verdict(seen)


def request_of(options: argparse.Namespace, scenarios: Sequence[Found], most: int) -> Request:
    asleep = str(Path(__file__).with_name("sleeping_layers.py"))
    resolved = discover.resolve(discover.DEFAULT_WORKLOAD if options.compute else asleep, discover.WORKLOAD)
    trained = discover.load_workload(*resolved)
    settings = trained.workload.settings_on("cpu") | {"model": options.model}
    return Request(
        scenarios=tuple(found.name for found in scenarios),
        device="cpu",
        devices=(),
        replicas=most,
        task=trained.task("cpu", settings | ({"image_size": 32} if options.compute else {})),
        global_batch=BATCH * most,
        warmup=2,
        iters=options.iters,
        stall_timeout_s=300.0,
    )


@dataclass(slots=True, kw_only=True)
class Lab:
    """In each namespace a process that has imported torch and forks a rank for each launch."""

    request: Request
    scenarios: Sequence[Found]
    folder: Path
    servers: "list[subprocess.Popen[str]]"
    launches: int = 0

    def seen(self, mbit: int, hosts: int, repeat: int) -> Seen:
        here = [Host(name=str(number), cores=1) for number in range(hosts)]
        reduced, silent, step_ms = None, {}, {}
        if hosts > 1:
            point = Point(count=hosts, global_batch=hosts)
            job = job_at(self.request, self.scenarios[0], point, self.launches, here, "bandwidth")
            reduced = bandwidth.of(job, record.blank(job), self.launch(job))
        point = Point(count=hosts, global_batch=BATCH * hosts)
        for found in self.scenarios:
            job = job_at(self.request, found, point, self.launches, here, "exchanges")
            silent[found.name] = noted(job, self.launch(job))
            said = f"{silent[found.name].ends_ms['optimizer']:,.0f} ms without exchanges"
            if hosts > 1:
                job = job_at(self.request, found, point, self.launches, here, "measure", repeat)
                of_ranks = zip(*(one["measured"]["step_ms"] for one in self.launch(job)), strict=True)
                step_ms[found.name] = median(map(max, of_ranks))
                said = f"{step_ms[found.name]:,.0f} ms a step, {said}"
            print(f"{found.name}, {hosts} hosts, {mbit} Mbit/s: {said}", flush=True)
        return Seen(mbit=mbit, hosts=hosts, reduced=reduced, silent=silent, step_ms=step_ms)

    def launch(self, job: Job) -> list[dict[str, Any]]:
        """The result of each rank."""
        self.launches += 1
        file = self.folder / f"job-{job.launch}.json"
        file.write_text(json.dumps(asdict(replace(job, logs=str(self.folder)))))
        servers = self.servers[: job.processes]
        outs = [self.folder / f"result-{job.launch}-{number}.json" for number in range(len(servers))]
        for server, out in zip(servers, outs, strict=True):
            assert server.stdin is not None
            print(file, out, file=server.stdin, flush=True)
        for number, server in enumerate(servers):
            assert server.stdout is not None
            if server.stdout.readline().strip() != "0":
                log = (self.folder / f"log-{number}.txt").read_text()
                raise SystemExit(f"launch {job.launch} of {job.scenario} failed:\n{log[-2000:]}")
        return [json.loads(out.read_text()) for out in outs]


def noted(job: Job, results: list[dict[str, Any]]) -> ExchangesRecord:
    slowest = max(results, key=lambda one: one["ends_ms"]["optimizer"])
    return ExchangesRecord.of(
        record.blank(job),
        global_batch=job.workload.global_batch,
        ends_ms=slowest["ends_ms"],
        exchanges=decode(tuple[Exchange, ...], slowest["exchanges"]),
        why_not=slowest["why_not"],
    )


def verdict(seen: Sequence[Seen]) -> int:
    """Each step against its prediction; medians over rounds."""
    points = sorted({(one.mbit, one.hosts) for one in seen if one.hosts > 1})
    links = {point: link_of(seen, [point]) for point in points}
    for (mbit, hosts), link in links.items():
        at_once = [f"{number} at once {one.beta_ms / link.beta_ms:.2f}" for number, one in enumerate(link.at_once, 2)]
        rate = f"{8000 * link.gb_s:,.1f} Mbit/s, {1000 * link.alpha_ms:,.0f} µs a step of a ring"
        print(f"{hosts} hosts at {mbit} Mbit/s: {rate}; times as long a byte: {', '.join(at_once)}")
    print(
        "scenario | Mbit/s | hosts | measured ms | slowdown | predicted ms | error | with all-reduces of here | error"
    )
    worst = 0.0
    for name in SCENARIOS:
        for mbit, hosts in points:
            mine = [one for one in seen if (one.mbit, one.hosts) == (mbit, hosts)]
            real_ms = [one.step_ms[name] for one in mine]
            computing = [[one.silent[name]] for one in mine]
            slowdown = median(ms / of.ends_ms["optimizer"] for ms, (of,) in zip(real_ms, computing, strict=True))
            own = links[mbit, hosts], computing
            by_count = any(known != hosts for _, known in points)
            others = from_counts(seen, name, mbit, hosts) if by_count else (from_speeds(links, mbit), computing)
            (ms, error), (own_ms, own_error) = (
                against(real_ms, [predicted_ms(of, hosts, link) for of in rounds]) for link, rounds in (others, own)
            )
            worst = max(worst, abs(error))
            row = (f"{median(real_ms):,.0f}", f"{slowdown:.2f}", f"{ms:,.0f}", f"{error:+.1%}", f"{own_ms:,.0f}")
            print(name, mbit, hosts, *row, f"{own_error:+.1%}", sep=" | ")
    off = f"off by {worst:.1%} at most where left out (allowed {ALLOWED:.0%})"
    print(f"{'PASS' if worst <= ALLOWED else 'FAIL'}: {off}")
    return 0 if worst <= ALLOWED else 1


def predicted_ms(computing: Sequence[ExchangesRecord], hosts: int, link: Link) -> float:
    step = predicted_step(computing, hosts, link)
    assert step is not None
    return step[0]


def against(real_ms: Sequence[float], predicted: Sequence[float]) -> tuple[float, float]:
    """The prediction and its error, both medians over rounds."""
    return median(predicted), median(ms / real - 1 for ms, real in zip(predicted, real_ms, strict=True))


def link_of(seen: Sequence[Seen], points: Sequence[tuple[int, int]]) -> Link:
    link = fitted(samples(one.reduced for one in seen if one.reduced and (one.mbit, one.hosts) in points))
    assert link is not None
    return link


def from_counts(seen: Sequence[Seen], name: str, mbit: int, hosts: int) -> tuple[Link, list[tuple[Any, ...]]]:
    """The fit of the other group, and for each round what one host computes alone and those of that group do."""
    (others,) = (group for group in COUNTS if hosts not in group)
    computing = ([one.silent[name] for one in seen if one.hosts == known] for known in (1, *others))
    return link_of(seen, [(mbit, known) for known in others]), list(zip(*computing, strict=True))


def from_speeds(links: dict[tuple[int, int], Link], mbit: int) -> Link:
    """The link at a speed at which nothing was measured: the latency of the others, and their share of what the link is
    nominally capable of (medians); of several all-reduces at once, too, as many as were measured at all of the others.
    """
    others = [(other, (link, *link.at_once)) for (other, _), link in links.items() if other != mbit]
    alone, *at_once = (
        replace(
            others[0][1][place],
            alpha_ms=median(of[place].alpha_ms for _, of in others),
            beta_ms=median(of[place].beta_ms * other for other, of in others) / mbit,
            pieces=(),
            at_once=(),
        )
        for place in range(min(len(of) for _, of in others))
    )
    return replace(alone, at_once=tuple(at_once))


@contextmanager
def served(names: Sequence[str], folder: Path) -> "Iterator[list[subprocess.Popen[str]]]":
    servers = []
    try:
        for number, name in enumerate(names):
            own = {
                "RANK": str(number),
                "LOCAL_RANK": "0",
                "MASTER_ADDR": address(0),
                "MASTER_PORT": str(PORT),
                "GLOO_SOCKET_IFNAME": LINK,
                "OMP_NUM_THREADS": "1",
            }
            command = ["ip", "netns", "exec", name, sys.executable, __file__, "--serve"]
            with open(folder / f"log-{number}.txt", "w") as log:
                pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
                servers.append(subprocess.Popen(command, env=os.environ | own, text=True, **pipes))
        yield servers
    finally:
        for server in servers:
            server.kill()
            server.wait()


def serve() -> int:
    """Fork a rank for each line of standard input, a job's file and one for its result; print its exit status."""
    from bench.core.channel import die_with_parent
    from bench.worker.rank import execute

    die_with_parent(os.getppid())
    for line in sys.stdin:
        job, out = line.split()
        child = os.fork()
        if child == 0:
            die_with_parent(os.getppid())
            channel: Any = Collected(out)
            loaded = decode(Job, json.loads(Path(job).read_text()))
            execute(loaded, int(os.environ["RANK"]), channel, time.monotonic_ns())
            os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)
    return 0


class Collected:
    """In the place of the channel to a supervisor: the result goes to a file."""

    def __init__(self, out: str) -> None:
        self.out = out

    def send(self, **message: Any) -> None:
        if message["event"] == "done":
            Path(self.out).write_text(message["result"])


def address(number: int) -> str:
    return f"10.213.7.{number + 1}"


@contextmanager
def network(hosts: int) -> Iterator[list[str]]:
    """A namespace for each host, with an interface that hangs on a bridge in one more.

    TCP is Reno's: with CUBIC, several all-reduces at once leave up to a sixth of a link of 50 Mbit/s idle.
    """
    names = [f"bench-{os.getpid()}-{number}" for number in range(hosts)]
    middle = f"bench-{os.getpid()}-bridge"
    try:
        ip("netns", "add", middle)
        ip("-n", middle, "link", "add", "bridge", "type", "bridge")
        ip("-n", middle, "link", "set", "bridge", "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            peer = ("peer", "name", f"port{number}", "netns", middle)
            ip("link", "add", "name", LINK, "netns", name, "type", "veth", *peer)
            ip("-n", middle, "link", "set", f"port{number}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"{address(number)}/24", "dev", LINK)
            ip("netns", "exec", name, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")
            for device in ("lo", LINK):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in (*names, middle):
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)


def shape(names: Sequence[str], mbit: int) -> None:
    """Let each host send this much. Packets wait and are not dropped, as before a slow interface."""
    for name in names:
        rate = ("rate", f"{mbit}mbit", "burst", "1mbit", "latency", "2s")
        subprocess.run(["tc", "-n", name, "qdisc", "replace", "dev", LINK, "root", "tbf", *rate], check=True)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
