"""Which NCCL is loaded. No such library is here: empty files stand in, of which only the names count."""

from __future__ import annotations

from pathlib import Path

from launcher.checks.finding import OK, WARNING
from launcher.machine.packages import Package
from tests.unit.checks.cases import Machine, case, looker, only

look = looker("nccl")

PIP = (Package("nvidia_nccl_cu12", "2.21.5", "/site"), Package("torch", "2.6.0+cu126", "/site"))


def put(root: Path, folder: str, version: str) -> None:
    """Put a copy of NCCL into a folder, with its link."""
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / f"libnccl.so.{version}").write_text("")
    (place / "libnccl.so.2").symlink_to(f"libnccl.so.{version}")


def test_one_copy(tmp_path: Path) -> None:
    """Of a wheel, or of the system, by the loader's default folders."""
    found = only(look(case(Machine(tmp_path / "pip", gpus=1, packages=PIP))))
    assert (found.level, found.found) == (OK, "2.21.5 (/site/nvidia/nccl/lib/libnccl.so.2)")
    put(tmp_path / "system", "usr/lib/x86_64-linux-gnu", "2.18.3")
    found = only(look(case(Machine(tmp_path / "system", gpus=1))))
    assert (found.level, found.found) == (OK, "2.18.3 (/usr/lib/x86_64-linux-gnu/libnccl.so.2)")


def test_two_versions(tmp_path: Path) -> None:
    """torch takes that of its wheel, whatever LD_LIBRARY_PATH says; others take the other one."""
    put(tmp_path, "opt/nccl/lib", "2.18.3")
    seen = case(Machine(tmp_path, gpus=1, packages=PIP), {"LD_LIBRARY_PATH": "/none:/opt/nccl/lib"})
    found = only(look(seen))
    assert found.level == WARNING and found.fix.endswith("LD_PRELOAD=/site/nvidia/nccl/lib/libnccl.so.2")
    assert found.found.startswith("2.21.5 (/site/") and "2.18.3 (/opt/nccl/lib/" in found.found


def test_a_preload_goes_first(tmp_path: Path) -> None:
    """What LD_PRELOAD names is loaded before all others."""
    put(tmp_path, "opt/nccl/lib", "2.18.3")
    seen = case(Machine(tmp_path, gpus=1, packages=PIP), {"LD_PRELOAD": "/opt/nccl/lib/libnccl.so.2"})
    assert only(look(seen)).found.startswith("2.18.3 (/opt/")


def test_the_same_file_twice_is_one_copy(tmp_path: Path) -> None:
    """The loader's cache names files of /lib, which is a link to /usr/lib."""
    put(tmp_path, "usr/lib/x86_64-linux-gnu", "2.21.5")
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "etc").mkdir()
    cache = b"glibc-ld.so.cache1.1\0\0\1libnccl.so.2\0/lib/x86_64-linux-gnu/libnccl.so.2\0"
    (tmp_path / "etc/ld.so.cache").write_bytes(cache)
    found = only(look(case(Machine(tmp_path, gpus=1))))
    assert (found.level, found.found) == (OK, "2.21.5 (/lib/x86_64-linux-gnu/libnccl.so.2)")


def test_nothing_to_look_at(tmp_path: Path) -> None:
    """Without GPUs, or without NCCL."""
    assert look(case(Machine(tmp_path, packages=PIP))) == []
    assert look(case(Machine(tmp_path / "b", gpus=1))) == []
