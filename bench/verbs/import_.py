"""``python -m bench import``: make a run of a measurement by others, so that it can be compared with."""

from bench.console import count
from bench.core.codec import encode
from bench.core.errors import OK, RequestError
from bench.experiments import importing
from bench.machine.redact import without_secrets
from bench.runs.document import Imported
from bench.verbs.options import Parser, any_name, called, device_count, place, reply, scenario_name, utc, whole_number

DESCRIPTION = """\
Make a sealed run folder of a measurement that bench did not make, so that runs can be compared with it. FILE is
a CSV with a column step_ms, and where there are such scenario, launch, rank, step and warmup: a row per step.

Options say what the file does not (below). What is still unknown is null, and every comparison says so. The run is
marked as imported, with the name and the SHA-256 of the file, wherever it is named.
"""
EPILOG = """\
examples:
  python -m bench import times.csv --scenario ddp --model resnet101 --global-batch 256 --world-size 8
  python -m bench import times.csv --scenario ddp --device cuda --hardware 'NVIDIA A100-SXM4-80GB'
  python -m bench compare IMPORTED latest                 latest: the last run that was measured here

A verdict needs three launches on each side: give a CSV with a column launch, a value for each start of the program. One
start with many steps is one launch, whatever their number.

Exit codes: 0 imported; 2 the request is wrong or the file cannot be understood, and nothing was written.
"""


def main(arguments: list[str]) -> int:
    parser = Parser("import", DESCRIPTION, EPILOG)
    parser.add_argument("file", metavar="FILE", help="a CSV of step times")
    what = "what was run, if the file does not say it"
    parser.add_argument("--scenario", type=scenario_name, metavar="NAME", help=what)
    parser.add_argument("--model", type=any_name, metavar="NAME", help="what was trained, e.g. resnet101")
    parser.add_argument("--image-size", type=whole_number, metavar="PX", help="edge of the images")
    parser.add_argument("--global-batch", type=whole_number, metavar="N", help="examples per step over all ranks")
    parser.add_argument("--world-size", type=device_count, metavar="N", help="devices that shared the global batch")
    parser.add_argument("--warmup", type=whole_number, metavar="N", help="the first N steps of a launch were warm-up")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="where it was measured")
    what = "model of the GPU (or CPU), as the driver says"
    parser.add_argument("--hardware", type=any_name, metavar="NAME", help=what)
    parser.add_argument("--measured", type=utc, metavar="UTC", help="when, as 2024-05-01T12:00:00Z (default: now)")
    parser.add_argument("--label", type=without_secrets, metavar="TEXT", help="a few words to find it by")
    parser.add_out()
    options = parser.parse_args(arguments)
    if options.hardware is not None and options.device is None:
        raise RequestError("--hardware", "it is unknown whether that is a GPU or a CPU", "add --device cuda or cpu")
    given = {name: value for name, value in vars(options).items() if name not in ("file", "out", "json")}
    run = importing.imported(options.file, importing.Options(**given), options.out)
    imported, document = run.document.begun(Imported), run.document
    launches, steps = len(document.launches), sum(launch.iters or 0 for launch in document.launches)
    scenarios = ", ".join(run.document.request.scenarios)
    from bench.analyse.comparable import WORDS

    work = encode(run.document.workload)
    values = {"model": None, "image_size": None} | work["settings"]
    values |= {name: work[name] for name in ("global_batch", "replicas", "device", "warmup")}
    unknown = [WORDS.get(name, name.replace("_", " ")) for name, value in values.items() if value is None]
    of_workload = f", and of the workload {', '.join(unknown)}" if unknown else ""
    lines = [
        f"Imported {count(launches, 'launch', 'launches')} of {scenarios}, {steps} measured steps: {place(run.path)}",
        f"Not known: memory, energy, numerics, what ran{of_workload}",
        *([f"Left out: {'; '.join(imported.left_out)}"] if imported.left_out else []),
        f"Next, against the latest run: python -m bench compare {called(run.path)} latest",
    ]
    about = {"run": run.id, "path": run.path, "imported": encode(imported), "workload": work}
    reply(options, *lines, document=lambda: {**about, "launches": launches, "measured_steps": steps})
    return OK
