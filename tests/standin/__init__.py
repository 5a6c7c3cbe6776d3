"""Stand-ins for what a machine without a GPU lacks: a driver compiled from ``nvml.c``, answering from a script.

The real ``pynvml`` loads it through ``LD_LIBRARY_PATH``, which the dynamic linker reads when a process starts; so the
code under test runs in a process of its own.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.core.errors import RequestError
from bench.core.records import Gpu

ROOT = Path(__file__).resolve().parents[2]
NOT_AVAILABLE = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE of a 64-bit value."""

MIB = 2**20
A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
DEVICE_A = f"device {A} 0 65 0 Stand-in_A {81920 * MIB}"
DEVICE_B = f"device {B} 0 1 0 Stand-in_B {40960 * MIB}"
KEYS = ("utilisation", "power", "energy", "sm_clock", "memory_clock", "temperature", "throttle", "used")
"""What the script calls the metrics of a device."""

TWO_GPUS = (DEVICE_A, DEVICE_B)
"""NVML lists A first; in PCI order B is GPU 0."""


def a_gpu(index: int, uuid: str, name: str = "GPU") -> Gpu:
    about = {"memory_total_mib": 81920.0, "compute_capability": "9.0", "power_limit_w": 500.0, "driver": "500.1"}
    return Gpu(index=index, uuid=uuid, name=name, pci_bus_id=str(index), **about)


def documented(declares: str) -> str:
    """The Python file in CONTRIBUTING that has ``declares``, such as ``SITE =``, in it."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (source,) = (one for one in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE) if declares in one)
    return source


def install(site: Path, named: dict[str, str], files: dict[str, str], package: str = "theirs") -> None:
    """In ``site``, a package with these ``files`` and these modules with scenarios by their entry points."""
    metadata = site / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {module}" for name, module in named.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[bench.scenarios]", *lines, ""]))
    for name, text in files.items():
        (site / name).write_text(text)


def program(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


def complaints(name: str, *arguments: object, text: str | None = None, cwd: Path | None = None) -> str:
    """What a linter has against these files, or ``text``: "" where nothing. Skips where it is not installed."""
    path = shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed: pip install -e '.[dev]'")
    about = os.environ | {"NO_COLOR": "1"}
    command = [path, *map(str, arguments)]
    done = subprocess.run(command, input=text, cwd=cwd, capture_output=True, text=True, env=about)
    return done.stdout + done.stderr if done.returncode else ""


def refusal(call: Callable[[], object]) -> RequestError:
    """What ``call`` is refused with, which is one line."""
    with pytest.raises(RequestError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return caught.value


class Said(NamedTuple):
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    def well(self) -> Any:
        assert self.code == 0, self.err
        return self.document

    def refused(self, *words: str, code: int = 2) -> None:
        line = self.err.removesuffix("\n")
        assert (self.code, self.out, "\n" in line) == (code, "", False), self
        assert [part for part in words if part not in line] == [], line


@dataclass(frozen=True, slots=True)
class Driver:
    folder: Path
    script: Path

    def write(self, *lines: str) -> None:
        """What the driver says from its next call on (the language is described in ``nvml.c``).

        A byte that is no UTF-8 is written as its surrogate: ``\\udce9`` for 0xe9.
        """
        fresh = self.script.with_suffix(".new")
        fresh.write_text("".join(line + "\n" for line in lines), encoding="utf-8", errors="surrogateescape")
        fresh.replace(self.script)

    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.folder), "BENCH_STANDIN_NVML": str(self.script)}

    def python(self, code: str, *, path: tuple[Path, ...] = ()) -> str:
        return python(code, self.environment(), path=path)


def python(code: str, environment: dict[str, str], *, path: tuple[Path, ...] = ()) -> str:
    search = os.pathsep.join(str(folder) for folder in (*path, ROOT))
    about = os.environ | {"PYTHONPATH": search} | environment
    done = subprocess.run([sys.executable, "-c", code], env=about, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compile_driver(folder: Path, *, old: bool = False) -> Path:
    """Build ``libnvidia-ml.so.1`` in ``folder``; ``old``: without the symbols that came with R535. Skips without cc."""
    compiled("nvml.c", folder / "libnvidia-ml.so.1", *(["-DOLD_DRIVER"] if old else []))
    return folder


def compiled(source: str, library: Path, *options: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc, clang) is installed here, and the stand-ins have to be compiled")
    options = ("-O1", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", *options)
    command = [compiler, *options, str(Path(__file__).parent / source), "-o", str(library)]
    subprocess.run([*command, "-lm", "-lpthread", "-lrt"], check=True)
    return library
