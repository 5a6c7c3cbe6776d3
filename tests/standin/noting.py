"""A training script without torch, and without the time that it takes: it notes the steps that it says it made, as
``bench attach``'s recorder does. It takes its options from the arguments and from ``settings.json`` in its folder."""

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--step-ms", type=float, default=100.0)
parser.add_argument("--noise", type=float, default=0.01, help="from launch to launch, as a fraction")
parser.add_argument("--loss", type=float, default=2.0)
parser.add_argument("--norm", type=float, default=1.0)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--end", type=int, default=0)
parser.add_argument("--print-mb", type=int, default=0)
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--interrupt-at", type=int, default=0, help="the launch that interrupts bench")
parser.add_argument("--by", type=int, default=signal.SIGINT, help="the signal that it sends")
settings = Path(os.getcwd(), "settings.json")
if settings.exists():
    parser.set_defaults(**json.loads(settings.read_text()))
options = parser.parse_args()
if "NOTED" in os.environ:  # a file with a line for each launch: the noise is random, and the same in every test
    with open(os.environ["NOTED"], "a+") as file:
        file.write("\n")
        random.seed(launch := file.tell())
    if launch == options.interrupt_at:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it otherwise
        os.kill(os.getppid(), options.by)
        time.sleep(30)

RAN = {
    "model": "__main__.Model",
    "label": "no wrapper",
    "wrapper": "__main__.Model",
    "parallel_impl": None,
    "precision_impl": "torch",
    "replicas": 1,
    "norm_parts": 1,
    "weights": "replicated",
    "parameter_dtypes": {"float32": 10},
    "gradient_dtypes": {"float32": 10},
    "batch_norm_dtypes": {},
    "compute_dtypes": ["float32"],
    "optimizer": "torch.optim.sgd.SGD",
    "optimizer_fused": False,
    "optimizer_settings": {"lr": 0.01},
    "optimizer_dtypes": {"float32": 10},
    "scaler": None,
    "backend": None,
    "backend_class": None,
    "world_size": 1,
    "device": {"type": "cpu"},
    "memory_format": "unknown",
    "switches": {},
    "compiled": None,
    "tf32": None,
    "cudnn_benchmark": None,
    "bf16_instructions": None,
    "bf16_by_fp32": False,
    "threads": 1,
    "chosen_threads": None,
    "affinity": 2,
    "bound_cores": None,
    "versions": {"torch": os.environ.get("NOTED_TORCH", "2.0"), "cuda": None},
    "precision": "O0",
    "apex_kernels": None,
}
sys.stdout.write("x" * 1_000_000 * options.print_mb)
if options.end != 3:  # which fails before its first step
    step_ns = int(1e6 * options.step_ms * (1 + options.noise * random.gauss(0, 1)))
    begin_ns = time.perf_counter_ns()
    about = {
        "pid": os.getpid(),
        "rank": 0,
        "script": os.path.abspath(__file__),
        "python": [sys.version.split()[0], sys.executable],
        "devices": [],
        "effective": RAN,
    }
    notes = [
        {"begin": about},
        {"marks_ns": [begin_ns + step * step_ns for step in range(options.steps + 1)], "data_ms": [], "cuda_ms": []},
        {
            "end": {
                "calls": options.steps + 1,
                "others": {},
                "allocator": {"max_rss_mib": 50.0},
                "final_loss": options.loss * (1 + options.noise * random.gauss(0, 1)),
                "norms": {"gradients, step 1": options.norm, "weights, step 1": 1.0},
            }
        },
    ]
    with open(os.path.join(os.environ["BENCH_ATTACH"], f"{os.getpid()}-1.jsonl"), "w") as file:
        file.write("".join(json.dumps(line) + "\n" for line in notes))
time.sleep(options.sleep)
sys.exit(options.end)
