"""The report of ``bench doctor`` as one page of text for people."""

from collections import defaultdict
from collections.abc import Iterator

from bench.machine.doctor.concerns import Facts

MARKS = {"problem": "✗", "warning": "!", "note": "·"}
NAMED = 8
"""Pairs of GPUs that a line names."""


def page(report: Facts) -> str:
    """Facts, a few lines for each GPU, then the findings, one that several GPUs have once."""
    lines = [*_host(report["host"]), _driver(report["driver"]), *_gpus(report), *_torch(report["torch"]), ""]
    if not report["findings"]:
        lines.append("Nothing here would spoil a measurement.")
    for mark, about, finding, consequence, remedy in _findings(report["findings"]):
        lines += [f"{mark} {about}: {finding}", f"    so: {consequence}", f"    do: {remedy}"]
    lines += ["", "Next: python -m bench list, then python -m bench run"]
    return "\n".join(lines)


def _findings(findings: list[Facts]) -> Iterator[tuple[str, ...]]:
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for one in findings:
        kind, _, number = one["about"].partition("GPU ")
        remedy = one["remedy"].replace(f" -i {number} ", " -i {} ") if number else one["remedy"]
        alike[one["level"], kind, one["finding"], one["consequence"], remedy].append(number)
    for (level, kind, finding, consequence, remedy), numbers in alike.items():
        several = "each of GPUs" if len(numbers) > 1 else "GPU"
        about = kind or f"{several} {', '.join(numbers)}"
        yield MARKS[level], about, finding, consequence, remedy.replace("{}", ",".join(numbers))


def _host(host: Facts) -> list[str]:
    container = f"in a container ({host['container']})" if host["container"] else "no container seen"
    namespace = ", PID namespace of its own" if host["own_pid_namespace"] else ""
    quota = "" if host["cpu_quota"] is None else f", {host['cpu_quota']:g} cores' worth of time"
    cores = f"{host['cores_usable']} of {host['cores_online']} cores{quota}"
    governor = f"governor {_known(host['governor'])}, load {host['load_1min']:.1f}"
    limit = host["memory_limit_gib"]
    limited = "" if limit is None else f", {limit} GiB by the control group"
    memory = f"{host['memory_available_gib']} of {host['memory_gib']} GiB free{limited}"
    shared = "unknown" if host["shm_mib"] is None else f"{host['shm_mib'] / 1024:,.1f} GiB"
    return [
        f"Host     {host['host']}: {host['os']}, {container}{namespace}",
        f"CPU      {host['cpu']}, {cores}, {governor}",
        f"Memory   {memory}, /dev/shm {shared}, NUMA nodes {_known(host['numa_nodes'])}",
    ]


def _driver(driver: dict[str, object]) -> str:
    if driver["version"] is None:
        return "Driver   none"
    return f"Driver   {driver['version']}, NVML {_known(driver['nvml'])}, CUDA up to {_known(driver['cuda'])}"


def _gpus(report: Facts) -> list[str]:
    lines = []
    for gpu in report["gpus"]:
        now = gpu["now"]
        parts = (
            f"memory {_number(gpu['free_mib'], 'MiB')} free of {_number(gpu['memory_total_mib'], 'MiB')}",
            f"power {_number(now['power_w'], 'W')} of {_number(gpu['power_limit_w'], 'W')}",
            f"SM clock {_number(now['sm_clock_mhz'], 'MHz')} of {_number(gpu['max_sm_clock_mhz'], 'MHz')}",
            _number(now["temperature_c"], "°C"),
        )
        settings = (
            f"MIG {_switch(gpu['mig'])}, ECC {_switch(gpu['ecc'])}, persistence {_switch(gpu['persistence'])}",
            f"PCIe gen {_known(gpu['pcie_generation'])} ×{_known(gpu['pcie_width'])}",
            f"compute mode {_known(gpu['compute_mode'])}, compute capability {_known(gpu['compute_capability'])}",
            f"NUMA node {_known(gpu['numa_node'])}",
        )
        lines += [
            f"GPU {gpu['index']}    {gpu['name']}, {gpu['uuid']}",
            f"         {'; '.join(parts)}",
            f"         {', '.join(settings)}",
        ]
        for kind, what in (("processes", "process"), ("graphics", "graphics process")):
            for pid, name, used_mib in gpu[kind]:
                lines.append(f"         {what} {pid} ({name or 'name unknown'}): {_number(used_mib, 'MiB')}")
    return [*lines, *_paths(report["topology"])]


def _paths(topology: list[Facts]) -> Iterator[str]:
    """A line for each way in which GPUs reach each other."""
    pairs: dict[str, list[str]] = defaultdict(list)
    for path in topology:
        peer = {True: "peer access", False: "no peer access", None: "peer access unknown"}[path["p2p"]]
        way = f"{peer}{' over NVLink' * bool(path['nvlink'])}, by {path['level'] or 'an unknown way'}"
        pairs[way].append("{}-{}".format(*path["between"]))
    for way, of in pairs.items():
        more = f" and {len(of) - NAMED} more" if len(of) > NAMED else ""
        every = len(of) == len(topology) > 1
        yield f"GPUs     each two: {way}" if every else f"GPU {', '.join(of[:NAMED])}{more}  {way}"


def _torch(torch: Facts) -> list[str]:
    if torch["problem"] is not None:
        return ["torch    unusable"]
    apex = torch["apex"]
    modules = [f"{name} {'yes' if problem is None else 'no'}" for name, problem in apex["problems"].items()]
    modules += [f"{name} {'yes' if there else 'no'}" for name, there in apex["extras"].items()]
    versions = {name: _known(torch.get(name.lower())) for name in ("torchvision", "CUDA", "cuDNN", "NCCL")}
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [
        f"torch    {_known(torch['torch'])}, {libraries}, Python {torch['python']}",
        f"apex     {', '.join(modules)}",
    ]


def _known(value: object) -> str:
    return "unknown" if value is None else str(value)


def _switch(value: bool | None) -> str:
    return {True: "on", False: "off", None: "unknown"}[value]


def _number(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:,.0f} {unit}"
