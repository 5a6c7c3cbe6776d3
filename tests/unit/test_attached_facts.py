"""What a recorder in somebody else's script reads off its objects is what a run document has."""

import ast
from pathlib import Path
from types import ModuleType

from bench.runs.launches import Effective
from bench.worker import live
from bench.worker.attached import recorder


def keys_of(module: ModuleType, name: str) -> set[object]:
    dicts = [node for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())) if isinstance(node, ast.Dict)]
    keys = [{key.value for key in one.keys if isinstance(key, ast.Constant)} for one in dicts]
    (facts,) = (found for found in keys if name in found)
    return set(facts)


def test_it_says_of_every_field_what_it_knows() -> None:
    """Its dict is written out: the recorder imports nothing of bench, so that no type keeps the two together."""
    facts = keys_of(recorder, "apex_kernels"), keys_of(live, "wrapper")
    assert set.union(*facts) == set(Effective.__dataclass_fields__) and not set.intersection(*facts)
