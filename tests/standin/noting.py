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
NUMBERS = {"step-ms": 100.0, "loss": 2.0, "norm": 1.0, "steps": 12, "end": 0, "print-mb": 0, "sleep": 0.0}
NUMBERS |= {"wait-ms": 0.0, "noise": 0.01}  # for data; from launch to launch, as a fraction
NUMBERS |= {"interrupt-at": 0, "by": int(signal.SIGINT)}  # the launch that interrupts bench, and by what signal
for name, usual in NUMBERS.items():
    parser.add_argument(f"--{name}", type=type(usual), default=usual)
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

UNKNOWN = ("parallel_impl", "scaler", "backend", "backend_class", "compiled", "tf32", "cudnn_benchmark")
UNKNOWN += ("bf16_instructions", "chosen_threads", "bound_cores", "apex_kernels")
RAN = {
    **dict.fromkeys(UNKNOWN),
    **dict.fromkeys(("replicas", "norm_parts", "world_size", "threads"), 1),
    **dict.fromkeys(("model", "wrapper"), "__main__.Model"),
    **{f"{part}_dtypes": {"float32": 10} for part in ("parameter", "gradient", "optimizer")},
    "label": "no wrapper",
    "precision": "O0",
    "precision_impl": "torch",
    "weights": "replicated",
    "batch_norm_dtypes": {},
    "compute_dtypes": ["float32"],
    "optimizer": "torch.optim.sgd.SGD",
    "optimizer_fused": False,
    "optimizer_settings": {"lr": 0.01},
    "device": {"type": "cpu"},
    "memory_format": "unknown",
    "switches": {},
    "bf16_by_fp32": False,
    "affinity": 2,
    "versions": {"torch": os.environ.get("NOTED_TORCH", "2.0"), "cuda": None},
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
    end = {
        "others": {},
        "allocator": {"max_rss_mib": 50.0},
        "final_loss": options.loss * (1 + options.noise * random.gauss(0, 1)),
        "norms": {"gradients, step 1": options.norm, "weights, step 1": 1.0},
    }
    marks_ns = [begin_ns + step * step_ns for step in range(options.steps + 1)]
    waits_ms = [options.wait_ms] * len(marks_ns) if options.wait_ms else []
    notes = [{"begin": about}, {"marks_ns": marks_ns, "data_ms": waits_ms, "cuda_ms": []}, {"end": end}]
    with open(os.path.join(os.environ["BENCH_ATTACH"], f"{os.getpid()}-1.jsonl"), "w") as file:
        file.write("".join(json.dumps(line) + "\n" for line in notes))
time.sleep(options.sleep)
sys.exit(options.end)
