"""Which mpirun it is: by what each family prints, and by asking a real program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.core.errors import Unavailable
from launcher.machine.host import Host
from launcher.machine.mpi import Mpi, find_mpi, parse_version
from launcher.planning.recorded import replay
from launcher.planning.snapshot import render_snapshot, take_snapshot

HYDRA = "HYDRA build details:\n    Version:                                 {}\n    Release Date: Fri\n"
MVAPICH_OPTIONS = "    Configure options: '--prefix=/opt/mvapich2-2.3.7' '--with-device=ch3:mrail'\n"
SAID = [
    ("mpirun (Open MPI) 4.1.4\n\nReport bugs to ...", "Open MPI", "4.1.4", 4),
    ("mpirun (Open MPI) 5.0.0rc12\n", "Open MPI", "5.0.0", 5),
    ("mpiexec (OpenRTE) 3.1.6\n", "Open MPI", "3.1.6", 3),
    ("mpirun (IBM Spectrum MPI) 10.4.0.3rtm4\n", "Spectrum MPI", "10.4.0.3", 10),
    (HYDRA.format("5.0.2"), "MPICH", "5.0.2", 5),
    (HYDRA.format("4.0b1"), "MPICH", "4.0", 4),
    (HYDRA.format("3.2.1") + MVAPICH_OPTIONS, "MVAPICH", "3.2.1", 3),
    (
        "Intel(R) MPI Library for Linux* OS, Version 2019 Update 9 Build 2020 (id: 1)\nCopyright ...",
        "Intel MPI",
        "2019",
        2019,
    ),
    ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 2026", "Intel MPI", "2021.18.1", 2021),
    ("/bin/sh: warning: setlocale\nmpirun (Open MPI) 4.1.8\n", "Open MPI", "4.1.8", 4),
]


@pytest.mark.parametrize(("text", "family", "version", "major"), SAID)
def test_each_family_is_known_by_what_it_says(text: str, family: str, version: str, major: int) -> None:
    """Also with a warning in front, a suffix behind, or another name for mpirun."""
    mpi = parse_version("/opt/bin/mpirun", text)
    assert (mpi, mpi.major) == (Mpi("/opt/bin/mpirun", family, version), major)


def test_the_made_over_families_take_the_options_of_the_original() -> None:
    """Spectrum MPI 10 is no Open MPI 5: only that one speaks PRRTE's language."""
    kin = [parse_version("mpirun", text) for text, *_ in SAID]
    assert [mpi.dialect for mpi in kin] == [*["Open MPI"] * 4, *["MPICH"] * 3, *["Intel MPI"] * 2, "Open MPI"]
    assert [mpi.version for mpi in kin if mpi.uses_prrte] == ["5.0.0"]


ODD = ["", "\n", "LAM 7.1\n", "mpirun (Open MPI) x", "\x1b[31mrun --token=abc\x07\n"]


@pytest.mark.parametrize("text", ODD)
def test_another_program_is_an_error_that_quotes_its_first_line(text: str) -> None:
    """Escapes stay escapes, secrets stay secret, and the fix names what works."""
    with pytest.raises(Unavailable) as refused:
        parse_version("/opt/bin/mpirun", text)
    (problem,) = refused.value.problems
    assert problem.code == "unknown-mpirun"
    assert problem.what.isprintable() and "abc" not in problem.what
    assert text.strip().partition(" ")[0].strip("\x1b") in problem.what
    assert "Open MPI" in problem.fix


def script(folder: Path, name: str, body: str) -> Path:
    """Make a program that stands in for one that nobody here has."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_it_is_found_on_the_path_of_the_environment(tmp_path: Path) -> None:
    """mpirun anywhere on PATH before mpiexec, None without either; not our own PATH."""
    one, two = tmp_path / "one", tmp_path / "two"
    script(one, "mpiexec", "echo 'mpiexec (Open MPI) 4.1.1'")
    assert find_mpi({"PATH": str(one)}) == Mpi(str(one / "mpiexec"), "Open MPI", "4.1.1")
    script(two, "mpirun", "echo 'mpirun (Open MPI) 4.1.2'")
    found = find_mpi({"PATH": f"{one}:{two}"})
    assert found == Mpi(str(two / "mpirun"), "Open MPI", "4.1.2")
    assert find_mpi({"PATH": str(tmp_path)}) is None


def test_a_link_is_followed_to_where_the_daemons_are(tmp_path: Path) -> None:
    """A link in /usr/local/bin: its own folder has no orted. Renamed on the way: the link is all there is."""
    real = script(tmp_path / "opt", "mpirun", "echo 'mpirun (Open MPI) 4.1.1'")
    wrapper = script(tmp_path / "opt", "wrapper", "echo 'mpirun (Open MPI) 4.1.3'")
    for name in ("local", "site"):
        (tmp_path / name).mkdir()
    (tmp_path / "local" / "mpirun").symlink_to(real)
    (tmp_path / "site" / "mpiexec").symlink_to(wrapper)
    assert find_mpi({"PATH": str(tmp_path / "local")}) == Mpi(str(real), "Open MPI", "4.1.1")
    found = find_mpi({"PATH": str(tmp_path / "site")})
    assert found == Mpi(str(tmp_path / "site" / "mpiexec"), "Open MPI", "4.1.3")


def test_it_gets_no_more_than_it_needs(tmp_path: Path) -> None:
    """No secret, no rank, nothing to read from; what it complains about is part of what it says."""
    body = 'env >"$HOME/seen"; read x && exit 1; echo "mpirun (Open MPI) 4.1.1" >&2'
    script(tmp_path, "mpirun", body)
    path = f"{tmp_path}:/usr/bin:/bin"
    environ = {"PATH": path, "HOME": str(tmp_path), "RANK": "3", "HF_TOKEN": "x", "PMIX_RANK": "0"}
    assert str(find_mpi(environ)) == "Open MPI 4.1.1 mpirun"
    seen = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert seen - {"_", "PWD", "SHLVL", "OLDPWD"} == {"PATH", "HOME"}


def test_one_that_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    """A file that is no program: the reason, and which file."""
    path = script(tmp_path, "mpirun", "")
    path.write_bytes(b"\x7fELF nonsense")
    with pytest.raises(Unavailable, match=r"unknown-mpirun.*mpirun --version"):
        find_mpi({"PATH": str(tmp_path)})


def test_a_recorded_machine_has_the_mpirun_that_was_recorded(tmp_path: Path) -> None:
    """The same value, the same None, and the same error, whatever the machine that replays has."""
    script(tmp_path / "four", "mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    script(tmp_path / "odd", "mpirun", "echo 'LAM 7.1'")
    for name in ("four", "none", "odd"):
        environ = {"PATH": str(tmp_path / name)}
        data = json.loads(render_snapshot(take_snapshot(Host(), environ)))
        assert answer(replay(data), {}) == answer(Host(), environ), name
    for wrong in ("4", None, {"path": "/usr/bin/mpirun"}, {"path": "", "family": "", "version": "x"}):
        assert replay({"environ": {}, "mpirun": wrong}).find_mpi({}) is None


def answer(host: Host, environ: dict[str, str]) -> object:
    try:
        return host.find_mpi(environ)
    except Unavailable as error:
        return error.problems
