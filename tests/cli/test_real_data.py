"""Real data: read by index in every process alike, part of what a run is, and refused by name where it is wrong."""

import gzip
import os
import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Bench
from PIL import Image
from standin.planted import defined
from test_workload import MLP

from bench.analyse.parity import SAME
from bench.core.errors import RequestError
from bench.experiments import resume
from bench.report.launch_tables import facts
from bench.runs.document import RunDocument
from bench.runs.experiments import InputSweep
from bench.runs.reader import read
from bench.seams import discover
from bench.words.questions import questions

FEW = ("--device", "cpu", "--warmup", "1", "--iters", "4", "--launches", "1")
SMALL = ("--model", "shufflenet_v2_x0_5", "--image-size", "32", "--global-batch", "4")


@pytest.fixture
def fashion(tmp_path: Path) -> Path:
    """Images of FashionMNIST's form: noise, in which each class has another pair of bright rows."""
    folder, count = tmp_path / "fashion", 160
    folder.mkdir()
    draw = random.Random(0)
    labels = bytes(index * 7 % 10 for index in range(count))
    rows = (b"\xff" * 28 if row // 2 == label else draw.randbytes(28) for label in labels for row in range(28))
    sizes = b"".join(number.to_bytes(4, "big") for number in (count, 28, 28))
    pixels = gzip.compress(b"\0\0\x08\x03" + sizes + b"".join(rows), 1)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(pixels)
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x01" + sizes[:4] + labels))
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (40 + number, 50), (10 * number, 90, 0)).save(folder / name / f"{number:02}.jpg")
    return folder


def ran(out: Path) -> RunDocument:
    (path,) = out.iterdir()
    return read(str(path)).document


def test_data_is_part_of_what_a_run_is(fashion: Path, run_here: Bench, tmp_path: Path) -> None:
    asked = ("run", "--workload", "fashion_mlp", "--scenario", "single,ddp", *FEW, "--global-batch", "32")
    done = run_here(*asked, "--data", str(fashion), "--workers", "1", "--out", str(tmp_path / "real"))
    made = run_here(*asked, "--no-parity", "--out", str(tmp_path / "made"))
    assert done.code == made.code == 0, done.err
    real, synthetic = ran(tmp_path / "real"), ran(tmp_path / "made")
    work = real.workload
    assert (work.examples, work.workers, work.prefetch, work.data) == (160, 1, 2, str(fashion))
    assert work.title == "fashion_mlp, fashion" and "synthetic" not in done.err
    assert synthetic.workload.title == "fashion_mlp, synthetic data" and "synthetic data" in made.err
    assert synthetic.workload.examples is synthetic.workload.workers is None
    assert {row.scenario: row.verdict for row in real.parity} == {"single": SAME, "ddp": SAME}
    paths = [str(next((tmp_path / name).iterdir())) for name in ("real", "made")]
    refused = run_here("compare", *paths)
    assert refused.code == 12 and "data: files" in refused.err and "against synthetic" in refused.err
    said = dict(facts(real))["Data"]
    assert "160 examples of " in said and "whose memory is not counted" in said
    assert "An epoch has 5 steps: " in dict(questions(read(paths[0])))["Is the first epoch slower?"]


def fashion_module() -> Any:
    return discover.load_file("fashion_mlp", discover.names(discover.WORKLOAD)["fashion_mlp"], discover.WORKLOAD)


def test_images_have_their_labels(fashion: Path) -> None:
    for index in range(20):
        image, label = fashion_module().example(SimpleNamespace(data=str(fashion)), index)
        assert image.reshape(28, 28).mean(dim=1).argmax().item() // 2 == label == index * 7 % 10, index


def test_a_corrupt_image_fails_its_launch_by_name(images: Path, run_here: Bench, tmp_path: Path) -> None:
    broken = images / "dog" / "03.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    asked = ("run", "--workload", "imagefolder", "--scenario", "ddp", *FEW, *SMALL, "--no-parity", "--iters", "10")
    for workers in ("0", "2"):
        out = tmp_path / f"out{workers}"
        assert run_here(*asked, "--data", str(images), "--workers", workers, "--out", str(out)).code == 1
        (launch,) = ran(out).launches
        assert launch.status == "error" and f"{broken} cannot be decoded" in str(launch.reason)


WRONG = {
    "missing": ("fashion_mlp", lambda at: at / "absent", ("there is no folder", "train-images-idx3-ubyte.gz")),
    "a file": ("fashion_mlp", lambda at: at / "fashion" / "train-images-idx3-ubyte.gz", ("is not a folder",)),
    "empty": ("gpt", lambda at: at / "empty", ("is empty", "train.bin")),
    "another form": ("fashion_mlp", lambda at: at / "images", ("train-images-idx3-ubyte.gz cannot be read",)),
    "no tokens": ("gpt", lambda at: at / "images", ("train.bin", "give a folder with a train.bin")),
    "no annotations": ("retinanet", lambda at: at / "images", ("has no annotations", "Pascal VOC")),
    "no classes": ("imagefolder", lambda at: at / "fashion", ("has no folder with images",)),
    "a first file that is corrupt": ("imagefolder", lambda at: at / "corrupt", ("00.jpg cannot be decoded",)),
    "a link to nothing": ("imagefolder", lambda at: at / "linked", ("gone.jpg cannot be read",)),
    "too few": ("imagefolder", lambda at: at / "one", ("1 examples", "a global batch takes 8")),
    "a pipe": ("imagefolder", lambda at: at / "pipe", ("1.jpg cannot be read: it is not a regular file",)),
    "a workload without data": ("resnet101", lambda at: at / "images", ("resnet101 reads no data",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_data(name: str, fashion: Path, images: Path, run_here: Bench, tmp_path: Path) -> None:
    workload, folder, says = WRONG[name]
    for other in ("empty", "corrupt/a", "linked/a", "one/a", "pipe/a"):
        (tmp_path / other).mkdir(parents=True)
    for number in range(8):
        (tmp_path / "corrupt" / "a" / f"{number:02}.jpg").write_text("no image")
    (tmp_path / "linked" / "a" / "gone.jpg").symlink_to(tmp_path / "nowhere")
    Image.new("RGB", (40, 50)).save(tmp_path / "one" / "a" / "1.jpg")
    os.mkfifo(tmp_path / "pipe" / "a" / "1.jpg")
    asked = ("run", "--workload", workload, "--scenario", "single", *FEW, "--out", str(tmp_path / "out"))
    run_here(*asked, "--data", folder(tmp_path)).refused("bench: error: --data: ", *says)
    assert not (tmp_path / "out").exists()


def test_no_more_is_unpacked_than_the_header_says(tmp_path: Path) -> None:
    idx = fashion_module().idx
    head, bomb = b"\0\0\x08\x03", tmp_path / "bomb.gz"
    for rows, kept in ((160, 160), (2**31, 4000)):
        bomb.write_bytes(gzip.compress(head + rows.to_bytes(4, "big") + bytes(8) + bytes(4000 * 784), 1))
        values, count = idx(str(bomb), head, 16, 784)
        assert (len(values), count) == (min(rows, kept) * 784 + (rows == 160), rows)


STEP = MLP.replace("from torch.nn.functional", "time.sleep(0.1)\n    from torch.nn.functional").replace("64", "4", 1)
BATCH = defined("collate(examples)", "time.sleep(0.03)", "return torch.utils.data.default_collate(examples)")
SLOW = f"import time\n\n{STEP}{BATCH}"
"""A step of 100 ms, a batch of 30 ms."""


@pytest.mark.slow
def test_four_workers_free_a_slow_loader(run_here: Bench, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    asked = ("run", "--workload", str(tmp_path / "slow.py"), "--scenario", "single", "--no-parity", *FEW)
    found = {}
    for workers in ("0", "4"):
        out = tmp_path / f"out{workers}"
        done = run_here(*asked, "--iters", "9", "--warmup", "5", "--workers", workers, "--out", str(out))
        assert done.code == 0, done.err
        found[workers] = {one.code: one.remedy for one in ran(out).validity}
    assert re.match(r"--workers 1 would do", found["0"]["input-bound"])
    assert "input-bound" not in found["4"]


@pytest.mark.slow
def test_a_sweep_says_how_many_workers_are_enough(run_here: Bench, tmp_path: Path) -> None:
    """A step of 100 ms and a batch of 130 ms: two workers make one in 65 ms."""
    (tmp_path / "slow.py").write_text(SLOW.replace("0.03)", "0.13)"))
    asked = ("run", "--workload", str(tmp_path / "slow.py"), "--scenario", "single", "--ranks", "1", *FEW)
    done = run_here(*asked, "--input-sweep", "--json", "--out", str(tmp_path / "out"))
    found = done.well()["input"]
    counts = [row["workers"] for row in found["rates"] if row["what"] == "loader"]
    assert counts == [0, *(1 << n for n in range(len(os.sched_getaffinity(0)).bit_length()))]
    if max(counts) < 2:
        assert found["enough"] is None and "The loader bounds training with any number" in found["answer"]
    else:
        assert found["enough"] == 2 and "With fewer than 2 workers" in found["answer"], found["answer"]
    document = ran(tmp_path / "out")
    assert [one.workers for one in document.of(InputSweep).good if not one.first_reading] == [*counts, None]
    assert [launch.scenario for launch in document.good] == ["single"]
    assert document.workload.workers == document.request.more["workers"] == max(one for one in counts if one <= 2)
    assert found["answer"] in done.err
    assert run_here("check", "--rows", str(next((tmp_path / "out").iterdir()))).code == 0
    page = run_here("report", "--results", str(tmp_path / "out"), "--out", str(tmp_path / "page"))
    assert page.code == 0 and found["answer"] in page.out
    assert {"loader.svg", "input.csv"} <= {file.name for file in (tmp_path / "page").iterdir()}


WEIGHTED = defined("weight(batch)", 'return (1 + batch["y"]).sum()')
WEIGHTED += defined(
    "loss(model, batch)",
    'each = cross_entropy(model(batch["x"]), batch["y"], reduction="none")',
    'return (each * (1 + batch["y"])).sum() / weight(batch)',
)
"""Replaces the loss: an example counts as much as the number of its class."""


def test_a_loss_that_is_no_mean_is_weighted(run_here: Bench, tmp_path: Path) -> None:
    (tmp_path / "weighted.py").write_text(MLP + WEIGHTED)
    asked = ("run", "--workload", str(tmp_path / "weighted.py"), "--scenario", "single,ddp,apex_ddp", *FEW)
    done = run_here(*asked, "--out", str(tmp_path / "out"))
    assert done.code == 0, done.err
    rows = ran(tmp_path / "out").parity
    assert {row.scenario: row.verdict for row in rows} == {"single": SAME, "ddp": SAME, "apex_ddp": SAME}
    assert all(row.gradient_error is not None and row.gradient_error < 1e-5 for row in rows)


def test_a_run_is_resumed_on_the_same_files(fashion: Path) -> None:
    found = discover.load_workload(*discover.resolve("fashion_mlp", discover.WORKLOAD))
    task = found.task("cpu", found.workload.settings_on("cpu"), str(fashion))
    resume.refuse_other_data(task)
    for change in (lambda: (fashion / "more").write_text("x"), lambda: shutil.rmtree(fashion)):
        change()
        with pytest.raises(RequestError, match=re.escape(str(fashion))):
            resume.refuse_other_data(task)
