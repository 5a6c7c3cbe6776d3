"""A digest says of a run what its tables say, and nothing where they say nothing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

from standin.documents import changed
from standin.runs import APEX, DDP, FAST, GONE, write_run

from bench.analyse import verdicts
from bench.analyse.digest import of_run
from bench.analyse.parity import CANNOT_TELL
from bench.runs.digests import Launches
from bench.runs.reader import read as read_run


def test_a_digest_has_the_figures_of_what_went_well(tmp_path: Path) -> None:
    run = verdicts.judged(read_run(str(write_run(tmp_path, [DDP, DDP, FAST, APEX, GONE]))))
    scenarios = {row["scenario"]: row for row in json.loads(json.dumps(of_run(run), allow_nan=False))["scenarios"]}
    assert list(scenarios) == ["ddp", "ddp_o2", "apex_ddp", "dp"]
    ddp = scenarios["ddp"]["launches"]
    assert (ddp["launch"], ddp["repeat"]) == ([0, 1], [0, 1])
    assert [ddp[name][0] for name in ("step_ms", "throughput_per_s", "peak_total_mib")] == [40.0, 200.0, 500.0]
    assert ddp.keys() == get_type_hints(Launches).keys()
    assert scenarios["ddp_o2"]["parity"] == "not finite"
    assert scenarios["apex_ddp"]["what_ran"] == "native flat-bucket · gloo ×2 · fp32", "not the name it was asked by"
    assert scenarios["apex_ddp"]["launches"]["peak_total_mib"] == [None] and ddp["energy_per_1000_j"] == [None, None]
    assert (scenarios["dp"]["status"], scenarios["dp"]["launches"]["launch"]) == ("unsupported", [])


def test_numerics_that_nobody_can_tell_are_no_verdict(tmp_path: Path) -> None:
    run = read_run(str(write_run(tmp_path, [DDP])))
    (row,) = verdicts.judged(run).document.parity
    found = {
        verdict: of_run(changed(run, parity=(replace(row, verdict=verdict),)))["scenarios"][0]["parity"]
        for verdict in (CANNOT_TELL, "same")
    }
    assert found == {CANNOT_TELL: None, "same": "same"}
