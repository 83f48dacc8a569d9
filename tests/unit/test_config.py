"""Defaults for a fleet: lines of a file, what goes before them, and what makes a file none that counts."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import launcher
from launcher.core.errors import UsageError
from launcher.core.model import Plan
from launcher.machine import files
from launcher.machine.files import ACCESS_LIST
from launcher.machine.host import Host
from launcher.options.flags import FLAGS
from launcher.options.given import CONFIG, ETC, NEAR
from launcher.options.reading import Options, read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.planning.snapshot import take_snapshot

CPUSET = "/sys/fs/cgroup/cpuset.cpus.effective"


def read(files: Mapping[str, str], environ: Mapping[str, str] | None = None, **typed: str | bool) -> Options:
    """Return the options on a machine with these files."""
    host = replay({"environ": dict(environ or {}), "files": dict(files)})
    return read_options(typed, host.environ, host)


def plan(text: str, environ: Mapping[str, str] | None = None, **more: Any) -> Plan:
    """Return the plan on a machine with one such file."""
    host = replay({"environ": dict(environ or {}), "files": {ETC: text}, **more})
    return plan_job(host.environ, host, read_options({}, host.environ, host), ("true",))


def refuse(text: str) -> str:
    """Return what is wrong with a file."""
    with pytest.raises(UsageError) as caught:
        read({ETC: text})
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "grace=60\nlog_dir=/logs/a b\nprogress=false",
        "\ufeffgrace=60\nlog_dir=/logs/a b\nprogress=false",
        "[launcher]\n\n  grace = 60.0  \nlog-dir = /logs/a b # here\nprogress = 0",
        '; old\n# grace = 5\ngrace = "60"\nlog-dir = "/logs/a b" # here\nprogress = FALSE\r\n',
        "grace = '60'\t# s\nlog_dir = '/logs/a b'\nprogress\t=\tfalse",
    ],
)
def test_a_line_says_what_its_flag_would(text: str) -> None:
    """In INI's and TOML's way, with dashes or underscores."""
    options = read({ETC: text})
    assert (options.grace_s, options.text("log_dir"), options.switch("progress", True)) == (
        60,
        "/logs/a b",
        False,
    )


def test_an_own_file_goes_before_the_systems_and_all_variables_before_both() -> None:
    files = {
        ETC: "grace = 1\nbind = core\nrole = a\ntee = 1",
        "team.conf": "grace = 2\nbind = numa\nrole = b",
    }
    environ = {CONFIG: "team.conf", "LAUNCHER_BIND": "none", "PET_ROLE": "c", "PET_TEE": "2"}
    options = read(files, environ)
    assert (options.grace_s, options.text("bind"), options.text("role")) == (2, "none", "c")
    assert options.words("tee") == ((None, 2),)
    assert read(files, environ, grace="3").grace_s == 3
    assert set(options.files.notes) == {
        f"{ETC}:1: grace = 1 is not used: team.conf:1: grace = 2",
        f"{ETC}:2: bind = core is not used: team.conf:2: bind = numa",
        f"{ETC}:3: role = a is not used: team.conf:3: role = b",
        "team.conf:1: grace = 2",
        "team.conf:2: bind = numa is not used: LAUNCHER_BIND='none'",
        "team.conf:3: role = b is not used: PET_ROLE='c'",
        f"{ETC}:4: tee = 1 is not used: PET_TEE='2'",
    }


@pytest.mark.parametrize("dest", [flag.dest for flag in FLAGS if flag.is_of_one_job])
def test_what_one_job_is_cannot_be_a_default(dest: str) -> None:
    """By name: each machine of the fleet would be that node."""
    name = dest.replace("_", "-")
    assert f"[malformed-config] {ETC}:2: {name} belongs to a single job" in refuse(f"\n{name} = 1")
    assert f"--{name} or LAUNCHER_{dest.upper()}" in refuse(f"{dest} = 1")


def test_every_other_flag_can() -> None:
    values = {
        "nproc_per_node": "2",
        "redirects": "1",
        "tee": "1",
        "signal_map": "TERM=USR1",
        "rdzv_conf": "a=b",
    }
    values |= {
        "local_ranks_filter": "0",
        "mpi_args": "-x",
        "forward": "HF_*",
        "source": "slurm",
        "lost_after": "9",
        "preload": "auto",
        "log_rotate": "1M",
    }
    for flag in FLAGS:
        if flag.is_of_one_job:
            continue
        words = flag.metavar.split("|")
        value = "true" if flag.parse is None else values.get(flag.dest, words[-1] if len(words) > 1 else "7")
        assert flag.dest in read({ETC: f"{flag.name[2:]} = {value}"}).files.given


@pytest.mark.parametrize(
    ("text", "said", "fix"),
    [
        ("grace 60", "'grace 60': expected name = value", "begin it with #"),
        ("grace =", "'grace =': expected name = value", "begin it with #"),
        ("[torch]", "'[torch]': expected name = value, with the name of a flag, or [launcher]", ""),
        ("grace = soon", "grace = soon: expected seconds in 0..86400", f"correct {ETC}:1"),
        ("progress = yes", "progress = yes: expected 0, 1, false or true", f"correct {ETC}:1"),
        ("grace = 1\ngrace = 2", f"{ETC}:2: grace is also in {ETC}:1", "leave out one of them"),
        ("log-dir = /a\nlog_dir = /a", f"log_dir is also in {ETC}:1", "leave out one of them"),
    ],
)
def test_a_line_that_is_none_is_an_error_with_its_number(text: str, said: str, fix: str) -> None:
    found = refuse(text)
    assert said in found and fix in found and ETC in found


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("grce", "grace is the nearest"),
        ("nproc", "none is similar: launcher run --help-all lists all"),
        ("Grace", "grace is the nearest"),
        ("no-check", "check = false"),
        ("--grace", "grace is the nearest"),
    ],
)
def test_a_name_that_no_flag_has_stops_no_job(name: str, fix: str) -> None:
    """Of a newer release, maybe: a line for each, also of one that is there twice, and the others count."""
    options = read({ETC: f"{name} = 60\n{name} = x\nbind = none"})
    said = f"{name!r} is not the name of a flag and is not used ({fix})"
    assert options.files.warnings == (f"{ETC}:1: {said}", f"{ETC}:2: {said}")
    assert options.text("bind") == "none" and list(options.files.given) == ["bind"]


def test_all_that_is_wrong_is_said_at_once_also_of_flags() -> None:
    with pytest.raises(UsageError) as caught:
        read({ETC: "hosts = a\nfabric = x"}, grace="soon")
    assert [problem.code for problem in caught.value.problems] == [
        "malformed-config",
        "malformed-flag",
        "malformed-flag",
    ]


# --- facts


def test_a_default_is_below_what_is_typed_and_what_the_platform_says() -> None:
    """It conflicts with nothing, and says nothing of processes that have been started."""
    # It may be for jobs of other kinds: what is typed goes before what it excludes, or needs.
    options = read(
        {ETC: "max-restarts = 3\non-stall = stop\nmeeting = false"}, restarts="1", require_meeting=True
    )
    assert options.get("max_restarts") is None and options.number("restarts", 0) == 1
    given = options.get("on_stall")
    assert given is not None and not given.is_typed and not given.is_platforms
    assert options.text("on_stall") == "stop"
    assert plan("nproc-per-node = 4", gpus=8).topology.local_size == 4
    assert plan("nproc-per-node = gpu", gpus=8).topology.local_size == 8
    told = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2"}
    assert plan("nproc-per-node = 4", told, gpus=8).topology.local_size == 2
    assert plan("nproc-per-node = 4", {"LAUNCHER_NPROC_PER_NODE": "1"}, gpus=8).topology.local_size == 1
    # A flag that differs from what was started is a contradiction; a default is of no interest then.
    started = {f"OMPI_COMM_WORLD_{name}": "2" for name in ("SIZE", "LOCAL_SIZE")}
    started |= {f"OMPI_COMM_WORLD_{name}": "1" for name in ("RANK", "LOCAL_RANK")}
    assert plan("nproc-per-node = 8", started, gpus=8).topology.local_size == 2
    # One node takes any that is free; what a variable says goes before it.
    ranks = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    ranks |= {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    assert plan("master-port = 29500", ranks).topology.master_port == 29500
    assert plan("master-port = 29500", {**ranks, "MASTER_PORT": "7000"}).topology.master_port == 7000
    assert plan("master-port = 29500").takes_free_port


# --- which files count


def test_a_worker_has_it_from_its_agent_and_a_secret_is_not_shown() -> None:
    """The launcher around has read the files; a long value is cut and redacted."""
    # As PET_*: the launcher or the agent around this one has read the files.
    for name in ("LAUNCHER_LAUNCHED", "TORCHELASTIC_RUN_ID"):
        assert not read({ETC: "grce"}, {name: "1"}).files.given
    assert read_options({}, {CONFIG: "/nowhere"}).files.given == {}
    # A long value is cut, and what looks like a secret is taken out, as of a variable.
    noted = plan(f"role = {'a' * 300}").notes
    assert any("(300 characters)" in note for note in noted)


NONE = 0xFFFF_FFFF
ACL_OF_ANOTHER_USER = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, rights, number)
    for tag, rights, number in ((1, 7, NONE), (2, 7, 4711), (4, 5, NONE), (16, 7, NONE), (32, 5, NONE))
)
"""user::rwx user:4711:rwx group::r-x mask::rwx other::r-x; linux/posix_acl_xattr.h."""


def make_file(root: Path, text: str, mode: int = 0o644) -> Path:
    """Write a file of the system, below a folder that stands for the root."""
    file = root / ETC.lstrip("/")
    file.parent.mkdir()
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_file_of_the_system_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    """With a warning at the start: it could have any job run what somebody else wants."""
    file, host = make_file(tmp_path, "grace = 9"), Host(str(tmp_path))
    assert read_options({}, {}, host).grace_s == 9
    file.chmod(0o666)
    options = read_options({}, {}, host)
    assert (options.grace_s, options.files.warnings) == (25, (f"{ETC} is not used: all users can write it",))
    file.chmod(0o664)
    if os.geteuid() == 0:
        assert read_options({}, {}, host).grace_s == 9  # its group is root's
        os.chown(file, 0, 4711)
        warned = read_options({}, {}, host).files.warnings
        assert warned == (f"{ETC} is not used: group 4711 can write it",)
        file.chmod(0o644)
        os.chown(file, 65534, 0)
        warned = read_options({}, {}, host).files.warnings
        assert warned == (f"{ETC} is not used: user 65534 owns it, neither root nor you",)


def test_a_file_beside_the_script_or_above_it_counts_before_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearest one, of a script wherever it is, else of the working directory; a plan has its lines."""
    code = tmp_path / "project" / "code"
    code.mkdir(parents=True)
    (code / "train.py").touch()
    (tmp_path / NEAR).write_text("grace = 1")
    (tmp_path / "project" / NEAR).write_text('[launcher]\ngrace = 2\nrole = "a"  # a comment\n')

    def read_near(*command: str, **environ: str) -> Options:
        return read_options({}, environ, Host(), command)

    monkeypatch.chdir(tmp_path)
    assert read_near("python", "-u", "project/code/train.py").grace_s == 2
    assert read_near(str(code / "train.py")).text("role") == "a"
    assert read_near("python", "-m", "train").grace_s == 1
    (code / NEAR).write_text("grace = 3")
    assert read_near("python", "project/code/train.py").grace_s == 3
    assert read_near("project/code/train.py", LAUNCHER_GRACE="4").grace_s == 4
    (tmp_path / "team.conf").write_text("grace = 5")
    assert read_near("project/code/train.py", LAUNCHER_CONFIG=str(tmp_path / "team.conf")).grace_s == 5
    assert read_options({}, {}, Host()).grace_s == 25 and read_near(LAUNCHER_LAUNCHED="1").grace_s == 25
    planned = launcher.plan(["--", "python", "project/code/train.py"], environ={})
    assert f"{code / NEAR}:1: grace = 3" in planned.notes
    taken = replay(take_snapshot(Host(), {}))
    assert read_options({}, {}, taken, ()).grace_s == 1


def test_a_file_in_a_folder_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    """Not even if the file is ours: a warning says so, and no file above it is looked for."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (tmp_path / NEAR).write_text("grace = 1")
    (folder / NEAR).write_text("grace = 2")
    command = (str(folder / "train.py"),)
    for mode, who in ((0o777, "all users"), (0o1777, "all users"), (0o775, "group 4711")):
        if os.geteuid() == 0:
            os.chown(folder, 0, 4711)
        elif mode == 0o775:
            continue
        folder.chmod(mode)
        options = read_options({}, {}, Host(), command)
        said = f"{folder / NEAR} is not used: {who} can write its directory"
        assert (options.grace_s, options.files.warnings) == (25, (said,))
    folder.chmod(0o755)
    assert read_options({}, {}, Host(), command).grace_s == 2
    if os.geteuid() == 0:
        os.chown(folder, 65534, 0)
        (warned,) = read_options({}, {}, Host(), command).files.warnings
        assert warned.endswith("user 65534 owns its directory, neither root nor you")


def test_what_another_user_can_have_put_there_is_not_even_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link may lead root to a device, which opening it alone starts or rewinds."""
    (tmp_path / NEAR).symlink_to("/dev/watchdog")
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(files, "open_file", lambda *_, **__: pytest.fail("it was opened"))
    options = read_options({}, {}, Host(), (str(tmp_path / "train.py"),))
    said = f"{tmp_path / NEAR} is not used: all users can write its directory"
    assert options.files.warnings == (said,)


def test_what_an_access_list_lets_others_write_is_not_used(tmp_path: Path) -> None:
    """The mode shows only its mask, as the rights of a group that is ours."""
    file, command = tmp_path / NEAR, (str(tmp_path / "train.py"),)
    file.write_text("grace = 2")
    for path, what in ((file, "it"), (tmp_path, "its directory")):
        mode = path.stat().st_mode
        path.chmod(mode | 0o020)
        os.chown(path, -1, 0 if os.geteuid() == 0 else -1)
        os.setxattr(path, ACCESS_LIST, ACL_OF_ANOTHER_USER)
        options = read_options({}, {}, Host(), command)
        said = f"{file} is not used: an access list lets others write {what}"
        assert (options.grace_s, options.files.warnings) == (25, (said,))
        os.removexattr(path, ACCESS_LIST)
        path.chmod(mode)
    assert read_options({}, {}, Host(), command).grace_s == 2


def test_a_file_of_the_system_that_is_none_is_not_used(tmp_path: Path) -> None:
    file = make_file(tmp_path, "")
    file.unlink()
    os.mkfifo(file)
    assert read_options({}, {}, Host(str(tmp_path))).files.warnings == (
        f"{ETC} is not used: not a regular file",
    )


def test_a_file_that_is_named_must_be_one(tmp_path: Path) -> None:
    """Whose it is, is known to who names it; not who may change it."""
    file = tmp_path / "own.conf"

    def why() -> str:
        with pytest.raises(UsageError) as caught:
            read_options({}, {CONFIG: str(file)}, Host())
        (problem,) = caught.value.problems
        assert problem.code == "malformed-config"
        return problem.what.removeprefix(f"{CONFIG}='{file}': ")

    assert why() == "No such file or directory"
    file.write_text("grace = 8")
    if os.geteuid() == 0:
        os.chown(file, 65534, 0)
    assert read_options({}, {CONFIG: str(file)}, Host()).grace_s == 8
    file.chmod(0o666)
    assert why() == "all users can write it"
    file.chmod(0o644)
    file.write_text("# " + "a" * (1 << 16))
    assert why() == "it is longer than 64 KiB"
    file.unlink()
    file.mkdir()
    assert why() == "Is a directory"


def test_a_snapshot_has_the_files(tmp_path: Path) -> None:
    """So that what they do can be replayed, without a secret in them."""
    file = tmp_path / "own.conf"
    file.write_text("grace = 8\nrole = x\n# token=ghp_0123456789abcdefghijABCDEFGHIJ0123456789\n")
    snapshot = take_snapshot(Host(), {CONFIG: str(file)})
    assert "ghp_" not in str(snapshot["files"])
    recorded = replay(snapshot)
    assert read_options({}, recorded.environ, recorded).grace_s == 8


def test_without_a_file_it_costs_nothing_to_speak_of() -> None:
    """One look at a name: under 0.3 ms."""
    host, times = Host(), []
    if host.has_file(ETC):
        pytest.skip(f"this machine has {ETC}")
    for _ in range(50):
        before = time.perf_counter()
        host.has_file(ETC)
        times.append(time.perf_counter() - before)
    assert min(times) < 0.0003


def test_a_word_for_the_number_counts_accelerators_of_other_makers() -> None:
    """``auto`` in a file is what it is on the command line: not the number of CPUs."""
    files = {ETC: "nproc-per-node = auto", "/dev/davinci0": "", "/dev/davinci1": "", CPUSET: "0-7"}
    host = replay({"files": files})
    made = plan_job({}, host, read_options({}, {}, host), ("true",))
    assert made.topology.local_size == 2
