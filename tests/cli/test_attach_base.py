"""``bench attach --base``: two commands in turns are one run, and the answer is that of ``bench compare``."""

import json
import sys
from pathlib import Path

import pytest
from conftest import Bench, Plotting
from standin.schemas import only_run

from bench.runs import document as stored

NOTING = str(Path(__file__).parent.parent / "standin" / "noting.py")
OLD = f"{sys.executable} {NOTING}"
NEW = (sys.executable, NOTING)


def test_two_commands_take_turns_and_are_compared(attaching: Bench, plotting: Plotting) -> None:
    """What they print is not on standard output, where the JSON is; of the next commands one is run."""
    plotting()
    Path("there").mkdir()
    sides = ("--base", OLD, "--base-cwd", "there", "--base-env", "NOTED_TORCH=1.9", "--names", "old,fast")
    how = ("--launches", 3, "--json", "--markdown", "made.md")
    code, out, err = attaching(
        "attach", *sides, *how, "--", *NEW, "--step-ms", "90", "--loss", "2.5", "--print-mb", "1"
    )
    assert code == 0, err
    answer = json.loads(out)
    row = next(row for row in answer["comparisons"] if row["metric"] == "step_time")
    assert (row["scenario"], row["against"], row["verdict"]) == ("fast", "old", "faster")
    assert row["low"] < 0.9 < row["high"] and row["p_adjusted"] < 0.05
    run = only_run()
    document, attached = run.document, run.document.of(stored.Attached)
    assert [launch.scenario for launch in document.launches] == ["old", "fast", "fast", "old", "old", "fast"]
    assert [launch.repeat for launch in document.launches] == [0, 0, 1, 1, 2, 2]
    assert [one.effective.versions["torch"] for one in document.launches[:2]] == ["1.9", "2.0"]
    assert attached.commands["old"].cwd.endswith("there") and attached.commands["old"].environment
    assert all(one.startup_ms < one.wall_ms and one.final_loss > 1.5 for one in attached.launches)
    assert "bench: fast takes 0.9" in err and "of old's time a step: faster, p " in err
    lines = err.splitlines()
    differences = [line for line in lines if line.startswith("fast against old: ")]
    assert differences[0].startswith("fast against old: higher: final loss +") and "faster: step time" in differences[1]
    assert "| fast | final loss |" in Path("made.md").read_text()
    (following,) = [line for line in lines if line.startswith("bench: next: ")]
    code, out, _ = attaching(*following.split(", or python -m bench ")[1].split())
    assert code == 0 and "fast" in out and Path("reports/comparison.svg").exists()
    code, page, _ = attaching("report", "latest")
    assert code == 0 and "old (" in page and "fast (" in page


def test_the_same_command_twice_does_not_differ(attaching: Bench) -> None:
    """Until both are precise enough, which takes no launch more where they do not scatter; a third one beside them."""
    more = ("--until-precision", "50%", "--launches", 3, "--also", OLD + " --step-ms 80")
    code, out, err = attaching("attach", "--base", OLD, *more, "--", *NEW)
    assert code == 0 and "of base's time a step: no difference found" in out, err
    assert "also1 takes 0.79" in out and len(only_run().document.launches) == 9


@pytest.mark.parametrize(
    ("end", "line"),
    [("3", "nothing was recorded of new"), ("4", "new: not comparable: new: it is 'error'")],
    ids=["before a step", "after its steps"],
)
def test_a_side_that_fails_is_not_comparable(attaching: Bench, end: str, line: str) -> None:
    code, out, err = attaching("attach", "--base", OLD, "--launches", 3, "--", *NEW, "--end", end)
    assert code == 12 and line in out + err
    assert len(only_run().document.launches) == 2 - (end == "3")


def test_the_first_side_that_fails_ends_it(attaching: Bench) -> None:
    code, out, err = attaching("attach", "--base", OLD + " --end 3", "--", *NEW)
    assert (code, out) == (12, "") and "nothing was recorded of base, and the command ended with exit code 3" in err
    assert not Path("results").exists()


REFUSED = {
    "no base": (("--names", "a,b"), "--names: there is no --base; give what the command is compared with"),
    "a quote": (("--base", "python 'a"), '--base: "python \'a": no closing quotation; quote it as for a shell'),
    "empty": (("--base", " "), "--base: it is empty"),
    "names": (("--base", "true", "--names", "a"), "--names: 'a' has 1 different name for 2 commands; give 2"),
    "variable": (("--base", "true", "--base-env", "x"), "--base-env: 'x' is not NAME=VALUE"),
    "folder": (("--base", "true", "--base-cwd", "nowhere"), "--base-cwd: 'nowhere' is no folder"),
    "not there": (("--base", "./nowhere"), "COMMAND: there is no command './nowhere'"),
    "scenario": (("--base", "true", "--scenario", "x"), "--scenario: it is for one command"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_sides_are_one_line(attaching: Bench, case: str) -> None:
    arguments, line = REFUSED[case]
    code, out, err = attaching("attach", *arguments, "--", "true")
    assert (code, out, err.count("\n")) == (2, "", 1) and line in err
