"""Cases to look at: a machine in a folder, with the few facts that do not stand in files given by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import launcher.checks
from launcher.checks.case import CheckedNode, read_case
from launcher.checks.finding import Finding
from launcher.machine.addresses import Addresses
from launcher.machine.host import Host
from launcher.machine.mpi import Mpi
from launcher.machine.packages import Package
from tests.unit.machines import write

DOCKER = {".dockerenv": ""}


class Machine(Host):
    """A machine in a folder; what would be asked of the kernel, of a resolver or of NVML is given here."""

    def __init__(
        self,
        root: Path,
        files: Mapping[str, str] | None = None,
        *,
        gpus: int = 0,
        spaces: Mapping[str, tuple[int, int]] | None = None,
        packages: tuple[Package, ...] | None = None,
        names: Mapping[str, set[str]] | None = None,
        mpi: Mpi | None = None,
        starters: tuple[str, ...] = (),
    ) -> None:
        super().__init__(str(root))
        write(root, {"proc/self/cgroup": "0::/\n", **(files or {})})
        write(root, {f"dev/nvidia{minor}": "" for minor in range(gpus)})
        self._spaces, self._packages = spaces or {}, packages
        self._names, self._mpi, self._starters = names or {}, mpi, starters

    def space(self, path: str) -> tuple[int, int] | None:
        return self._spaces.get(path)

    def packages(self, python: str | None, environ: Mapping[str, str]) -> tuple[Package, ...] | None:
        return self._packages

    def hostname(self) -> str:
        return "node0"

    def networks(self) -> Addresses:
        return {"eth0": (("10.0.0.4", 24),), "lo": (("127.0.0.1", 8),)}

    def look_up(self, names: Sequence[str]) -> Mapping[str, frozenset[str]]:
        return {name: frozenset(self._names.get(name, ())) for name in names}

    def find_mpi(self, environ: Mapping[str, str]) -> Mpi | None:
        return self._mpi

    def mpi_starters(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        return self._starters


def case(host: Host, environ: Mapping[str, str] | None = None, /, **facts: object) -> CheckedNode:
    """Return what the checks see of a machine, with facts of a job."""
    return CheckedNode(**{**vars(read_case(host, environ or {}, None, ())), **facts})


def looker(name: str) -> Callable[[CheckedNode], list[Finding]]:
    """Return the check of this name."""
    (row,) = (row for row in launcher.checks.TABLE if row.name == name)
    return lambda case: launcher.checks.look(row, case)


def only(findings: list[Finding]) -> Finding:
    """Return the one finding that there is."""
    (finding,) = findings
    return finding


def levels(findings: list[Finding]) -> list[str]:
    """Return the levels in order."""
    return [finding.level for finding in findings]


def limits(soft: str, hard: str, name: str = "Max locked memory") -> dict[str, str]:
    """Return /proc/self/limits with one limit, as the kernel writes it."""
    head = f"{'Limit':<25} {'Soft Limit':<20} {'Hard Limit':<20} Units\n"
    return {"proc/self/limits": f"{head}{name:<25} {soft:<20} {hard:<20} bytes\n"}
