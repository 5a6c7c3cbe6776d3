"""The energy of CPU packages from Linux' powercap interface (RAPL): what a run on the CPU took out of the socket.

The counters wrap, only root can read them since 2020 (CVE-2020-8694), and virtual machines have none.
"""

import glob
import os

ROOT = "/sys/class/powercap"


class Rapl:
    """The packages that can be read, from now on. ``reason``: why there is none, or None."""

    def __init__(self, root: str = ROOT) -> None:
        self.reason: str | None = None
        self._packages: dict[str, str] = {}
        self._last_uj: dict[str, int] = {}
        self._sum_uj: dict[str, int] = {}
        folders = sorted(glob.glob(os.path.join(root, "intel-rapl:*")))
        for folder in folders:
            try:
                name = _text(folder, "name")
                if not name.startswith("package"):
                    continue
                self._last_uj[name] = int(_text(folder, "energy_uj"))
                self._sum_uj[name] = 0
                self._packages[name] = folder
            except (OSError, ValueError) as error:
                self.reason = f"{folder}/energy_uj cannot be read ({_told(error)}); root may, or 'chmod a+r' lets all"
        if self._packages:
            self.reason = None
        elif self.reason is None:
            self.reason = f"this machine has no RAPL counter of a CPU package ({root}): a virtual machine has none"

    def read(self) -> dict[str, tuple[float | None, str | None]]:
        """Per package (``package-0``): energy in mJ since this object was made, wraps taken out; or None and why."""
        readings: dict[str, tuple[float | None, str | None]] = {}
        for name, folder in self._packages.items():
            try:
                now_uj = int(_text(folder, "energy_uj"))
                if now_uj < self._last_uj[name]:
                    self._sum_uj[name] += int(_text(folder, "max_energy_range_uj"))
            except (OSError, ValueError) as error:
                readings[name] = None, f"energy_mj: {_told(error)}"
                continue
            self._sum_uj[name] += now_uj - self._last_uj[name]
            self._last_uj[name] = now_uj
            readings[name] = self._sum_uj[name] / 1000, None
        return readings


def _text(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read().strip()


def _told(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
