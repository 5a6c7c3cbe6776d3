"""Verbs and options. Each verb imports what it needs; errors become one line and an exit code here and nowhere else.

``--help`` and ``list`` answer at once because nothing heavy is imported for them: keep this module's imports empty.
"""

import gc
import os
import signal
import sys

HELP = """\
usage: python -m bench VERB [OPTIONS]

Which data-parallel strategy and precision train fastest on this machine, what
do they cost in memory and energy, and do they still train the same model?
bench measures that on the GPUs you choose or on the CPU, for your own model or
for ResNet-101: DDP, FSDP2, ZeRO-1, DataParallel, apex DDP, AMP levels O1-O3.

verbs:
  list      every scenario, what it is, and whether it can run here
  doctor    what this machine can measure, and what would spoil it
  run       measure scenarios; without options: all ten, quickly
  runs      what runs there are, each with its answer
  tune      search for the fastest way to train this that still trains it
  scale     what more devices bring, what is lost, and how it goes on
  limits    what this machine could do on this model, and where the rest goes
  show      the answer and the table of a run again
  report    turn runs into a page with tables and plots
  check     verify runs: seals, counts, and values that add up
  compare   is one run, or one scenario, different from another?
  gate      has a run regressed against the nights before it? (exit code 10)
  history   trends over all runs of a folder, and where they shifted
  accept    record that a slower run is meant to be so
  import    make a run of a measurement by others, to compare with
  attach    measure a training script of your own, unchanged
  bisect    which commit or version made it slower?
  recipe    a training script of what a run measured, without bench
  submit    run on several hosts by Slurm, Kubernetes or SkyPilot

Start with:
  python -m bench run                        all ten scenarios, in a few minutes
  python -m bench report                     its page, in reports/index.html

And then:
  python -m bench run --scenario ddp,ddp_o2  some scenarios
  python -m bench run --gpus 0,1,3           chosen GPUs (PCI order, or UUIDs)
  python -m bench run --profile standard     several launches: reliable numbers
  python -m bench VERB --help                what a verb takes
  python -m bench --version

Exit codes: 0 done; 1 a launch failed or bench itself did; 2 the request is
wrong; 10 regressed; 11 inconclusive; 12 missing or not comparable;
130 interrupted.
"""

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
ANSWER_BYTES = 16 << 20
"""An answer up to this long is written at its end, so that the exit code is the same whenever its reader leaves."""
VERBS = tuple(line.split()[0] for line in HELP.partition("verbs:\n")[2].partition("\n\n")[0].splitlines())


def program() -> None:
    """The whole process. It ends without what libraries do at exit, which hangs where they could start no thread."""
    if BLAS_THREADS not in os.environ:  # numpy's begin with it, and crash where they may not; nothing here needs them
        os.putenv(BLAS_THREADS, "1")  # which os.environ does not show: ranks and records have what the user set
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where our parent ignores it, the kernel reaps what we wait for
    gc.set_threshold(1_000_000, 20, 20)  # what verbs import and read is hardly ever garbage
    if sys.stdout is not None and not sys.stdout.isatty():
        sys.stdout = open(1, "w", ANSWER_BYTES, sys.stdout.encoding, closefd=False)  # noqa: SIM115
    os._exit(main(last=True))


def main(arguments: list[str] | None = None, *, last: bool = False) -> int:
    """``last``: the process ends after this, and signals are ignored from then on."""
    _mend_streams()
    from bench.core.errors import INTERRUPTED
    from bench.experiments import interrupts

    try:
        with interrupts.heeded(last=last):
            return _finished(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        _say("bench: interrupted")
        return INTERRUPTED


def _finished(arguments: list[str]) -> int:
    try:
        code = _answer(arguments)
    except BrokenPipeError:
        code = 1  # the reader of our output left; nobody is there to tell
    except Exception as error:
        from bench.core.errors import remedy_of
        from bench.experiments import interrupts

        if interrupts.came():
            raise KeyboardInterrupt from error
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError):  # what no verb foresaw: a disk that is full, a folder that is gone
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        elif isinstance(error, ModuleNotFoundError) and (package := str(error.name).partition(".")[0]) != "bench":
            what = f"{package} is not installed for {sys.executable}; pip install {package}"
        elif remedy_of(what) is None:  # else a library had no memory, thread or descriptor
            raise
        try:
            code = _failed("; ".join(filter(None, (what, remedy_of(what)))), arguments, 1)
        except OSError:
            code = 1  # it was the output that failed
    try:
        sys.stdout.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # what is left in its buffer goes there
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError):  # whose reader has what it wanted ('| head -1')
            if code != 1:
                _say(f"bench: error: standard output cannot be written: {error.strerror}")
            return 1
    return code


def _answer(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from bench import __version__

        print(f"bench {__version__}")
        return 0
    from bench.core.errors import INTERRUPTED, OK, BenchError, RequestError

    try:
        return int(_verb(arguments[0])(arguments[1:]))
    except BenchError as error:
        prefix = "" if error.exit_code == INTERRUPTED else "error: "
        said = isinstance(error, RequestError) and error.said
        return _failed(str(error), arguments, error.exit_code, prefix, said=said)
    except SystemExit as stop:  # argparse, after --help
        return stop.code if isinstance(stop.code, int) else OK


def _failed(line: str, arguments: list[str], code: int, prefix: str = "error: ", *, said: bool = False) -> int:
    """Say what went wrong in one line, unless that was ``said``, and, if it is asked for, in JSON."""
    line = " ".join(line.split())
    if not said:
        _say(f"bench: {prefix}{line}")
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments  # behind it are those of a command
    if "--json" in own:
        from bench.verbs.options import print_json

        print_json({"error": line, "exit_code": code})
    return code


def _verb(name: str):  # type: ignore[no-untyped-def]  # naming the type would import typing
    if name not in VERBS:
        from bench.core.errors import RequestError, closest

        if name.startswith("-"):
            raise RequestError(name, "the verb comes first", "write 'bench VERB [OPTIONS]' ('bench --help')")
        raise RequestError(name or "''", "unknown command", f"{closest(name, list(VERBS))} ('bench --help')")
    from importlib import import_module

    return import_module(f"bench.verbs.{'import_' if name == 'import' else name}").main  # a keyword names no module


def _mend_streams() -> None:
    """Make streams take whatever is printed: an encoding without ± or – shows an escape, a closed one nothing.

    A closed standard stream's number goes to /dev/null, before a pipe to a rank takes it.
    """
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and (stream.errors == "strict" or stream.encoding.lower() != "utf-8"):
            reconfigure(errors="backslashreplace")


def _say(line: str) -> None:
    from bench.console import say

    say(line)
