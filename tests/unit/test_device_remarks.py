"""What the records say against a run's figures, in lines that say what to do."""

from typing import Any

from bench.analyse.device_remarks import invalid_launches, remarks

HOT = {"verdict": "invalid", "devices": {"GPU-a": ["thermal slowdown (hardware)"], "GPU-b": []}}
CAPPED = {"verdict": "warning", "devices": {"GPU-a": ["power cap"]}}
FINE = {"verdict": "ok", "devices": {"GPU-a": ["idle"]}}
OTHER = {"device": "GPU-a", "pid": 4242, "name": "trainer", "peak_mib": 900.0, "certain": True}


def run(*checks: dict[str, Any] | None) -> dict[str, Any]:
    return {"launches": [{"launch": n, "scenario": f"s{n}", "checks": one} for n, one in enumerate(checks)]}


def test_nothing_is_said_where_nothing_was_noticed_or_nobody_looked_yet() -> None:
    quiet = {"foreign": [], "scrambled_lists": 0, "throttle": FINE}
    assert remarks(run(quiet, {}, None, {"foreign": [], "throttle": None})) == []
    assert invalid_launches(run(quiet, {}, None, {"throttle": None})) == {}


def test_heat_comes_before_the_power_cap_and_names_its_launches() -> None:
    document = run({"throttle": CAPPED}, {"throttle": HOT}, {"throttle": HOT})
    hot, capped = remarks(document)
    assert hot.startswith("s1, s2 (launch 1, 2) slowed down for heat")
    assert "GPU-a: thermal slowdown (hardware)" in hot
    assert "measure again" in hot
    assert capped.startswith("s0 (launch 0) ran at its power cap")
    assert invalid_launches(document) == dict.fromkeys((1, 2), "GPU-a: thermal slowdown (hardware)")


def test_foreign_processes_are_named_once_and_a_doubt_is_told() -> None:
    unsure = OTHER | {"pid": 7, "name": None, "peak_mib": None, "certain": False}
    (line,) = remarks(run({"foreign": [OTHER]}, {"foreign": [OTHER, unsure]}))
    assert line == (
        "s0, s1 (launch 0, 1) shared a GPU with PID 4242 (trainer, 900 MiB), PID 7 (name unknown, memory unknown, "
        "perhaps a rank under another PID); measure again when it is free"
    )


def test_a_sampler_that_died_and_scrambled_lists_are_told() -> None:
    blind, dropped = remarks(run({"foreign": None}, {"scrambled_lists": 2}, {"scrambled_lists": 1}))
    assert blind.startswith("s0 (launch 0) had no sampler to its end")
    assert dropped.startswith("3 lists of processes came scrambled")
