"""A verb on several hosts: the same command on each of them, by an engine. The first leads, the others follow."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import bench
from bench import machine
from bench.console import say
from bench.core.codec import encode
from bench.core.errors import RequestError
from bench.experiments import resume
from bench.machine import foreign
from bench.sites.hosts import follower
from bench.sites.hosts.engine import Started, engine_of
from bench.sites.hosts.hello import Hello
from bench.sites.hosts.party import Party, leading
from bench.verbs.asked import Options
from bench.verbs.options import Parser

OF_A_HOST = ("out", "json", "verbose", "wait", "force", "gpus", "pythons", "apex", "label")
"""Options that may differ between hosts, or count on the first alone."""


def on_all_hosts(arguments: list[str], parser: Parser, perform: Callable[[Options, Parser, Party | None], int]) -> int:
    """``perform(options, parser, party)`` on this host, or on the first of several, where ``party`` is all of them; the
    others take its launches. Returns the exit code, the same on all hosts.
    """
    engine = engine_of(os.environ)
    if engine is None or engine.count == 1:
        return perform(parser.parse_args(arguments, Options()), parser, None)
    if engine.index == 0:
        with leading(engine, os.environ, say) as party:
            options = parser.parse_args(arguments, Options())
            party.gather(_hello(options, parser), say)
            return party.end(perform(_continued(options, parser, party), parser, party))
    return _follow(arguments, parser, engine)


def _continued(options: Options, parser: Parser, party: Party) -> Options:
    """The options that go on with what this job of the engine has begun; unchanged if it has begun nothing."""
    begun = None if options.resume is not None else resume.unfinished(options.out, party.job())
    if begun is None:
        return options
    say(f"{options.out}/{begun} is of this job, and is continued")
    continued = parser.parse_args(["--resume", begun], Options())
    vars(continued).update({name: getattr(options, name) for name in ("out", "json", "verbose", "wait", "force")})
    return continued


def _follow(arguments: list[str], parser: Parser, engine: Started) -> int:
    with follower.following(engine, os.environ, say) as line:
        options = parser.parse_args(arguments, Options())
        hello = _hello(options, parser)
        own = follower.Options(
            python=next(iter(options.pythons), None),
            fresh=options.fresh,
            apex_path=options.apex and os.path.abspath(options.apex),
            wait=options.wait,
            check=lambda: foreign.refuse(machine.choose_device(hello.device)[1], hello.devices, force=options.force),
        )
        return follower.follow(line, hello, own, say)


def refuse_site(options: Options) -> None:
    if options.site != "local":
        raise RequestError("--site", "on several hosts each forks ranks of its own", "leave it out")


def _hello(options: Options, parser: Parser) -> Hello:
    refuse_site(options)
    device, gpus, left_out = machine.choose_device(options.device)
    if device == "cpu" and options.gpus is not None:
        raise RequestError("--gpus", "there is no GPU here, or --device cpu was asked for", "leave it out")
    values = {name: encode(value) for name, value in vars(options).items() if name not in OF_A_HOST}
    return Hello(
        bench=_own_code(),
        device=device,
        cores=machine.cores(),
        devices=machine.choose_gpus(options.gpus, gpus),
        machine=machine.describe(gpus, left_out),
        asked={one.option_strings[0]: values[one.dest] for one in parser._actions if one.dest in values},
    )


def _own_code() -> str:
    files = sorted(Path(bench.__file__).parent.rglob("*.py"))
    checksum = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return f"{bench.__version__} (SHA-256 {checksum[:8]})"
