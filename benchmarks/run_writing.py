"""Writing runs of 1, 10, 100 and 1,000 launches: the time and the bytes written grow in proportion.

    python benchmarks/run_writing.py

Each launch has two ranks, 22 steps of each, 40 samples of memory and a log of 100 lines for each rank. Time is the
processor's, of this process; the disk's own share is in the wall time. In proportion: a launch of the largest run takes
at most 1.5 times as long as one of a tenth of its launches.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import paired

sys.path.insert(0, os.path.join(paired.ROOT, "tests"))  # where runs are written by hand

from standin.documents import document
from standin.documents import launch as launched
from standin.runs import Launch

from bench.runs.writer import RunWriter

BEND = 1.5
STEPS, SAMPLES, LOG_LINES = 22, 40, 100


def write(out: str, launches: int) -> tuple[float, float, int]:
    """Processor time and wall time (s), and the bytes that reached the file system."""
    one = Launch("ddp", [[10.0] * STEPS] * 2, [[100.0] * SAMPLES] * 2)
    before = _bytes_written()
    cpu, wall = time.process_time(), time.perf_counter()
    writer = RunWriter(out, document(request={"scenarios": ["ddp"], "warmup": 1, "iters": STEPS - 1}))
    for number in range(1, launches + 1):
        for rank in range(2):
            Path(writer.logs, f"launch-{number:03d}-ddp-rank{rank}.log").write_text("a line\n" * LOG_LINES)
        writer.add(
            launched(**one.record(number, number - 1)),
            steps=one.step_rows(number, number - 1),
            memory=one.memory_rows(number),
        )
    writer.finish(complete=True)
    return time.process_time() - cpu, time.perf_counter() - wall, _bytes_written() - before


def _bytes_written() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, nargs="+", default=[1, 10, 100, 1000])
    options = parser.parse_args()
    each = []
    with tempfile.TemporaryDirectory() as out:
        write(out, 1)  # imports
        for launches in options.launches:
            cpu, wall, written = write(out, launches)
            each.append(cpu / launches)
            print(
                f"{launches:5d} launches: {cpu:8.2f} s of the processor ({1e3 * cpu / launches:6.1f} ms a launch), "
                f"{wall:8.2f} s in all, {written / 1e6:9.1f} MB written",
                flush=True,
            )
    bend = each[-1] / each[-2]
    print(f"a launch of the largest run takes {bend:.2f} times as long as one of the run before (at most {BEND})")
    return 0 if bend <= BEND else 1


if __name__ == "__main__":
    raise SystemExit(main())
