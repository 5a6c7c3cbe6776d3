"""What the records say against a run's figures: throttling, foreign processes, dropped lists; each with what to do."""

from typing import Any


def remarks(document: dict[str, Any]) -> list[str]:
    """One line for each kind of trouble and scenario, the gravest first. ``document``: run.json; old ones have none."""
    checked = [(launch, launch.get("checks") or {}) for launch in document["launches"]]
    return [*_throttled(checked), *_foreign(checked), *_dropped(checked)]


def invalid_launches(document: dict[str, Any]) -> dict[int, str]:
    """The launches whose figures must not be used, with the reason: heat or hardware slowed a GPU down in them."""
    return {
        launch["launch"]: _by_device(launch["checks"]["throttle"])
        for launch in document["launches"]
        if ((launch.get("checks") or {}).get("throttle") or {}).get("verdict") == "invalid"
    }


def _throttled(checked: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    told = {
        "invalid": "{where} slowed down for heat or by its hardware ({why}): invalid; mend the cooling "
        "or the power supply and measure again",
        "warning": "{where} ran at its power cap ({why}): compare only with runs at the same limit",
    }
    lines = []
    for verdict, text in told.items():
        found = [(launch, checks["throttle"]) for launch, checks in checked if _verdict(checks) == verdict]
        if found:
            why = ", ".join(dict.fromkeys(_by_device(throttle) for _, throttle in found))
            lines.append(text.format(where=_launches([launch for launch, _ in found]), why=why))
    return lines


def _foreign(checked: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    lines = []
    found = [(launch, checks["foreign"]) for launch, checks in checked if checks.get("foreign")]
    if found:
        who = dict.fromkeys(_process(one) for _, processes in found for one in processes)
        where = _launches([launch for launch, _ in found])
        lines.append(f"{where} shared a GPU with {', '.join(who)}; measure again when it is free")
    blind = [launch for launch, checks in checked if "foreign" in checks and checks["foreign"] is None]
    if blind:
        lines.append(
            f"{_launches(blind)} had no sampler to its end: who else used the device is unknown; measure again"
        )
    return lines


def _dropped(checked: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    dropped = sum(checks.get("scrambled_lists") or 0 for _, checks in checked)
    if not dropped:
        return []
    return [f"{dropped} lists of processes came scrambled from the driver and were dropped; update it (early R535)"]


def _verdict(checks: dict[str, Any]) -> str | None:
    throttle = checks.get("throttle")
    return None if throttle is None else str(throttle["verdict"])


def _by_device(throttle: dict[str, Any]) -> str:
    return "; ".join(f"{uuid}: {', '.join(names)}" for uuid, names in throttle["devices"].items() if names)


def _process(one: dict[str, Any]) -> str:
    size = "memory unknown" if one["peak_mib"] is None else f"{one['peak_mib']:,.0f} MiB"
    doubt = "" if one["certain"] else ", perhaps a rank under another PID"
    return f"PID {one['pid']} ({one['name'] or 'name unknown'}, {size}{doubt})"


def _launches(launches: list[dict[str, Any]]) -> str:
    names = ", ".join(dict.fromkeys(launch["scenario"] for launch in launches))
    numbers = ", ".join(str(launch["launch"]) for launch in launches)
    return f"{names} (launch {numbers})"
