"""Equal work: every scenario sees the same images in the same steps, and DataParallel's parts are DDP's."""

import json
import struct
from collections import OrderedDict, UserDict
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image
from standin import refusal
from standin.workloads import workload
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DistributedSampler

from bench.core.errors import RequestError
from bench.core.job import Training
from bench.seams import discover, execute
from bench.worker import data
from bench.worker.workload import cast_floats, cut, examine, example_of, map_tensors, tensors_in

WORKLOAD = workload(image_size=8, global_batch=12, replicas=3)


def test_one_process_holds_what_all_ranks_hold() -> None:
    ranks = [data.batches(WORKLOAD, 3, range(rank, rank + 1), pin=False) for rank in range(3)]
    alone = data.batches(WORKLOAD, 3, range(3), pin=False)
    for step, (images, labels) in enumerate(alone):
        assert torch.equal(images, torch.cat([rank[step][0] for rank in ranks]))
        assert torch.equal(labels, torch.cat([rank[step][1] for rank in ranks]))
    assert not torch.equal(alone[0][0], alone[1][0]), "each step has others"


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True, slots=True)
class Sides:
    x: Any
    y: Any = ()


class Output(OrderedDict[str, Any]):
    """Its entries are attributes, too, as of those that Hugging Face's models return."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        setattr(self, name, value)


def test_what_has_names_keeps_them() -> None:
    x, y = torch.arange(8.0).view(4, 2), torch.arange(4)
    given = Pair(Output(x=x), [y])
    for made in (map_tensors(torch.Tensor.half, given), cast_floats(given, torch.float16)):
        assert made.x.x.dtype == made.x["x"].dtype == torch.float16 and x.dtype == torch.float32
        assert torch.equal(made.y[0], y) and type(made.y) is list
    assert map_tensors(torch.Tensor.half, UserDict(x=x))["x"].dtype == torch.float16
    first, second = cut(given, 4, 2)
    assert torch.equal(first.x.x, x[:2]) and torch.equal(second.y[0], y[2:])
    assert map_tensors(torch.Tensor.half, (x, None))[1] is None
    assert map_tensors(torch.Tensor.half, Sides(x)).x.dtype == torch.float16
    assert [(len(side.x), side.y) for side in cut(Sides(x), 4, 2)] == [(2, ()), (2, ())]


def test_packed_sequences_stay_so() -> None:
    """Recurrent layers take their sizes from the CPU, wherever the rest is."""
    given = (pack_sequence([torch.ones(2, 3), torch.ones(4, 3)], enforce_sorted=False), torch.arange(2))
    packed, _ = map_tensors(lambda tensor: tensor.to("meta"), given)
    assert [type(packed), packed.data.device.type, packed.batch_sizes.device.type] == [PackedSequence, "meta", "cpu"]
    assert cast_floats(given, torch.half)[0].data.dtype is torch.half
    assert [len(one) for one in tensors_in(given)] == [6, 2, 2, 2]


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_a_rank_that_trains_no_replica_loads_nothing(workers: int | None) -> None:
    asked = workload(workers=workers, prefetch=2 if workers else None)
    load = data.feeds(asked, 2, [range(2, 2)], torch.device("cpu"))
    assert [load() for _ in range(9)] == [None] * 9


def test_an_image_depends_on_seed_and_index_alone() -> None:
    image, label = example_of(WORKLOAD)(5)
    assert image.shape == (3, 8, 8) and label.shape == ()
    assert torch.equal(image, example_of(workload(image_size=8, global_batch=12, replicas=3, warmup=9))(5)[0])
    assert not torch.equal(image, example_of(WORKLOAD)(6)[0])
    assert not torch.equal(image, example_of(workload(image_size=8, seed=1))(5)[0])


@pytest.fixture
def real(tmp_path: Path) -> Training:
    """26 examples, each its own number, in global batches of 8: three in an epoch."""
    (tmp_path / "numbers.py").write_text(
        "from bench.seams import Workload\n"
        "WORKLOAD = Workload(summary='numbers', unit='numbers', global_batch=8, reads='nothing')\n"
        "def model(work): ...\n"
        "def size(work): return 26\n"
        "def example(work, index):\n    import torch\n    return {'x': torch.tensor(index)}\n"
        "def loss(model, batch): ...\n"
        "def optimizer(work, parameters): ...\n"
    )
    read = {"examples": 26, "data": str(tmp_path), "file": str(tmp_path / "numbers.py"), "settings": {}}
    return replace(workload(global_batch=8), name="numbers", workers=0, **read)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_real_data_is_the_same_for_any_workers(real: Training, workers: int) -> None:
    asked = replace(real, workers=workers, prefetch=2 if workers else None)

    def seen(groups: list[range], steps: int = 7) -> list[list[int]]:
        load = data.feeds(asked, 2, groups, torch.device("cpu"))
        return [[int(x) for _ in groups for x in load()["x"]] for _ in range(steps)]

    together = seen([range(1), range(1, 2)])  # as the reference
    assert together == seen([range(2)])  # as one process that trains both parts
    ranks = [seen([range(rank, rank + 1)]) for rank in range(2)]
    assert together == [first + second for first, second in zip(*ranks, strict=True)]
    assert together == _by_hand(real, 7)
    alone = data.feeds(asked, 1, [range(1)], torch.device("cpu"))
    assert [sorted(step) for step in together] == [sorted(alone()["x"].tolist()) for _ in range(7)]


def _by_hand(real: Training, steps: int) -> list[list[int]]:
    found: list[list[int]] = []
    for epoch in range(3):
        dealt: list[Any] = []
        for rank in range(2):
            sampler = DistributedSampler(range(26), 2, rank, shuffle=True, seed=real.seed, drop_last=True)
            sampler.set_epoch(epoch)
            dealt.append(list(sampler))
        found += [dealt[0][at : at + 4] + dealt[1][at : at + 4] for at in (0, 4, 8)]
    return found[:steps]


@pytest.mark.parametrize(("size", "refused"), [("26.0", "--workload"), ("__import__('numpy').int64(26)", None)])
def test_how_many_examples_there_are_is_a_whole_number(real: Training, size: str, refused: str | None) -> None:
    file = Path(real.file)
    file.write_text(file.read_text().replace("return 26", f"return {size}"))
    another = replace(real, sha256=None, seed=real.seed + len(size))  # its file has been read
    if refused is None:
        assert type(examine(another)["examples"]) is int
    else:
        assert str(refusal(lambda: examine(another))).startswith(f"{refused}: {file}: size(work) returned float;")


def test_loading_processes_end_with_their_rank(real: Training) -> None:
    from bench.core.children import children

    before = children()
    load = data.feeds(replace(real, workers=2, prefetch=2), 1, [range(1)], torch.device("cpu"))
    load()
    assert len(children()) == len(before) + 2
    del load
    assert children() == before


def opened(name: str, folder: Path, **settings: Any) -> Any:
    """``(size, example)`` of a workload on real data, whose other settings are those of the CPU."""
    found = discover.load_workload(*discover.resolve(name, discover.WORKLOAD))
    module = execute.load_file(found.name, found.file, discover.WORKLOAD)
    work = SimpleNamespace(**found.workload.settings_on("cpu") | {"seed": 0, "data": str(folder)} | settings)
    return lambda: module.size(work), lambda index: module.example(work, index)


@pytest.mark.parametrize(("kind", "token_bytes"), [("H", 2), ("I", 4)])
def test_tokens_are_read_as_nanogpt_writes_them(kind: str, token_bytes: int, tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(struct.pack(f"<100{kind}", *range(100)))
    size, example = opened("gpt", tmp_path, context=8, token_bytes=token_bytes)
    assert size() == 12  # of 8, and each needs the token after it
    tokens, following = example(11)
    assert (tokens.tolist(), following.tolist()) == (list(range(88, 96)), list(range(89, 97)))
    with pytest.raises(RequestError, match=r"the token 9\d, and the vocabulary is 90"):
        opened("gpt", tmp_path, context=8, token_bytes=token_bytes, vocabulary=90)[1](11)


def test_boxes_are_read_from_voc_and_coco(tmp_path: Path) -> None:
    for folder in ("voc/Annotations", "voc/JPEGImages", "coco/annotations", "coco/train2017"):
        (tmp_path / folder).mkdir(parents=True)
    for image in ("voc/JPEGImages", "coco/train2017"):
        Image.new("RGB", (40, 30)).save(tmp_path / image / "1.jpg")
    box = "<bndbox><xmin>3</xmin><ymin>4</ymin><xmax>13</xmax><ymax>24</ymax></bndbox>"
    text = f"<annotation><filename>1.jpg</filename><object><name>cat</name>{box}</object></annotation>"
    (tmp_path / "voc" / "Annotations" / "1.xml").write_text(text)
    boxes = [{"image_id": 7, "category_id": 1, "bbox": edges} for edges in ([3, 4, 10, 20], [5, 5, 0, 9])]
    content = {"images": [{"id": 7, "file_name": "1.jpg"}], "annotations": boxes}
    (tmp_path / "coco" / "annotations" / "instances_train2017.json").write_text(json.dumps(content))
    for folder in ("voc", "coco"):
        size, example = opened("retinanet", tmp_path / folder)
        image, target = example(0)
        assert size() == 1 and image.shape == (3, 30, 40)
        assert target["boxes"].tolist() == [[3, 4, 13, 24]] and target["labels"].tolist() == [1], folder
    (tmp_path / "voc" / "Annotations" / "1.xml").write_text(text[:-9])
    (tmp_path / "coco" / "annotations" / "instances_train2017.json").write_text("{}")
    for folder, file in (("voc", "1.xml"), ("coco", "instances_train2017.json")):
        with pytest.raises(RequestError, match=file):
            opened("retinanet", tmp_path / folder)[0]()


def test_a_crop_depends_on_seed_and_index_alone(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.radial_gradient("L").save(tmp_path / name / f"{number}.jpg")
    size, example = opened("imagefolder", tmp_path, image_size=16)
    images, labels = zip(*map(example, range(size())), strict=True)
    assert [int(label) for label in labels] == [0, 0, 1, 1] and {image.shape for image in images} == {(3, 16, 16)}
    assert torch.equal(images[1], example(1)[0]) and not torch.equal(images[0], images[1])
    assert not torch.equal(images[1], opened("imagefolder", tmp_path, image_size=16, seed=1)[1](1)[0])


def test_a_step_counts_the_tokens_of_its_examples() -> None:
    found = discover.load_workload(*discover.resolve("gpt", discover.WORKLOAD))
    task = found.task("cpu", found.workload.settings_on("cpu") | {"context": 48})
    assert replace(workload(global_batch=8), units_per_example=task.units_per_example).units == 8 * 48
