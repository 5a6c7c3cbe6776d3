"""Verbs and options. Each verb imports what it needs; errors become one line and an exit code here and nowhere else.

``--help`` and ``list`` answer at once because nothing heavy is imported for them: keep this module's imports empty.
"""

import sys

HELP = """\
usage: python -m bench VERB [OPTIONS]

Measure one training step of ResNet-101 under DataParallel, torch DDP, apex DDP
and AMP levels O1-O3, on the GPUs you choose or on the CPU: every step of every
rank, the memory of every process, tables and plots.

verbs:
  list      every scenario, what it is, and whether it can run here
  doctor    what this machine can measure, and what would spoil it
  run       measure scenarios; without options: all ten, quickly
  report    turn runs into a page with tables and plots
  check     verify runs: seals, counts, and figures that add up
  compare   is one run, or one scenario, different from another?
  gate      has a run regressed against the nights before it? (exit code 10)
  history   trends over all runs of a folder, and where they shifted
  accept    record that a slower run is meant to be so
  import    make a run of a measurement by others, to compare with

Start with:
  python -m bench run                        all ten scenarios, in a few minutes
  python -m bench report                     its page, in reports/index.html

And then:
  python -m bench run --scenario ddp,ddp_o2  some scenarios
  python -m bench run --gpus 0,1,3           chosen GPUs (PCI order, or UUIDs)
  python -m bench run --profile standard     several launches: figures to act on
  python -m bench VERB --help                what a verb takes
  python -m bench --version

Exit codes: 0 done; 1 a launch failed or bench itself did; 2 the request is
wrong; 10 regressed; 11 inconclusive; 12 missing or not comparable;
130 interrupted.
"""

VERBS = ("doctor", "list", "run", "report", "check", "compare", "gate", "history", "accept", "import")


def main(arguments: list[str] | None = None) -> int:
    """Run a verb; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from bench import __version__

        print(f"bench {__version__}")
        return 0
    from bench.errors import INTERRUPTED, BenchError

    try:
        code: int = _verb(arguments[0])(arguments[1:])
        return code
    except BenchError as error:
        line = " ".join(str(error).split())
        prefix = "" if error.exit_code == INTERRUPTED else "error: "
        _say(f"bench: {prefix}{line}")
        if "--json" in arguments:
            _print_json({"error": line, "exit_code": error.exit_code})
        return error.exit_code
    except KeyboardInterrupt:
        _say("bench: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left; nobody is there to tell
        return 1


def _verb(name: str):  # type: ignore[no-untyped-def]  # naming the type would import typing
    """The function that does a verb, imported only now."""
    if name not in VERBS:
        from bench.errors import RequestError

        raise RequestError(name, "there is no such verb", f"choose from {', '.join(VERBS)} ('bench --help')")
    from importlib import import_module

    return import_module(f"bench.verbs.{'import_' if name == 'import' else name}").main  # a keyword names no module


def _say(line: str) -> None:
    try:
        if sys.stderr.isatty():
            from bench.console import tell

            tell(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = None  # the terminal was closed; the exit code is all that is left to say


def _print_json(document: object) -> None:
    import json

    json.dump(document, sys.stdout, indent=1, allow_nan=False)
    print()
