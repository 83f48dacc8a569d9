"""The line for each mpirun, whole; and that the user's words and variables win."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from launcher.core.errors import UsageError
from launcher.engines.dialects import MpirunJob, carries, changed, plan_line, plan_variables, render_hostfile
from launcher.machine.mpi import Mpi

OPEN_MPI_3 = Mpi("/opt/ompi/bin/mpirun", "Open MPI", "3.1.6")
OPEN_MPI_4 = Mpi("/usr/bin/mpirun", "Open MPI", "4.1.4")
OPEN_MPI_5 = Mpi("/opt/ompi/bin/mpirun", "Open MPI", "5.0.11")
SPECTRUM = Mpi("/opt/ibm/spectrum_mpi/bin/mpirun", "Spectrum MPI", "10.4.0.3")
MPICH = Mpi("/opt/mpich/bin/mpiexec", "MPICH", "5.0.2")
MVAPICH = Mpi("/opt/mvapich/bin/mpiexec", "MVAPICH", "3.2.1")
INTEL = Mpi("/opt/impi/bin/mpirun", "Intel MPI", "2021.18.1")
DOCS = Path(__file__).parents[2] / "docs" / "mpi.md"
ALL = (OPEN_MPI_3, OPEN_MPI_4, OPEN_MPI_5, SPECTRUM, MPICH, MVAPICH, INTEL)
RAS = "^slurm,tm,pbs,lsf,gridengine,loadleveler,alps,flux"
HOSTS = ("10.0.0.4", "10.0.0.5", "10.0.0.6")
RSH = ("python", "-I", "-S", ".../rsh.py", "/run/x/rsh")


def job(mpi: Mpi, **given: object) -> MpirunJob:
    """Return three nodes with two ranks each, unless something else is given."""
    usual = {"hosts": HOSTS, "per_node": 2, "hostfile": "/run/x/hosts", "rsh": RSH}
    return MpirunJob(mpi, **{**usual, **given})  # type: ignore[arg-type]


def line(mpi: Mpi, **given: object) -> str:
    return " ".join(plan_line(job(mpi, **given)))


FULL = {
    "as_root": True,
    "forward": ("HELLO", "PATH"),
    "network": "10.0.0.0/24",
    "interface": "eth0",
    "ports": ("mlx5_0:1", "mlx5_1:1"),
    "extra": ("--tag-output",),
}
UCX = "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1"


def test_open_mpi_4() -> None:
    """The least, and everything."""
    assert line(OPEN_MPI_4) == (
        f"/usr/bin/mpirun --mca plm rsh --mca ras {RAS} "
        "--mca plm_rsh_agent python -I -S .../rsh.py /run/x/rsh "
        "--mca plm_rsh_no_tree_spawn 1 --mca orte_keep_fqdn_hostnames 1 --hostfile /run/x/hosts "
        "--np 6 --map-by ppr:2:node --bind-to none"
    )
    assert line(OPEN_MPI_4, **FULL) == (
        f"/usr/bin/mpirun --allow-run-as-root --mca plm rsh --mca ras {RAS} "
        "--mca plm_rsh_agent python -I -S .../rsh.py /run/x/rsh --mca plm_rsh_no_tree_spawn 1 "
        "--mca orte_keep_fqdn_hostnames 1 --hostfile /run/x/hosts --np 6 --map-by ppr:2:node --bind-to none "
        "--mca btl_tcp_if_include 10.0.0.0/24 --mca oob_tcp_if_include 10.0.0.0/24 "
        f"--mca pml ucx --mca btl ^openib -x {UCX} -x HELLO -x PATH --tag-output"
    )
    assert "python -I -S .../rsh.py /run/x/rsh" in plan_line(job(OPEN_MPI_4))


def test_open_mpi_5() -> None:
    """PRRTE's names for what starts daemons; no option that makes it a stranger to its own node."""
    assert line(OPEN_MPI_5) == (
        f"/opt/ompi/bin/mpirun --prtemca plm ssh --prtemca ras {RAS} "
        "--prtemca plm_ssh_agent python -I -S .../rsh.py /run/x/rsh --prtemca plm_ssh_no_tree_spawn 1 "
        "--hostfile /run/x/hosts --np 6 --map-by ppr:2:node --bind-to none"
    )
    assert line(OPEN_MPI_5, **FULL) == (
        f"/opt/ompi/bin/mpirun --allow-run-as-root --prtemca plm ssh --prtemca ras {RAS} "
        "--prtemca plm_ssh_agent python -I -S .../rsh.py /run/x/rsh --prtemca plm_ssh_no_tree_spawn 1 "
        "--hostfile /run/x/hosts --np 6 --map-by ppr:2:node --bind-to none "
        "--mca btl_tcp_if_include 10.0.0.0/24 --prtemca prte_if_include 10.0.0.0/24 "
        f"--mca pml ucx -x {UCX} -x HELLO -x PATH --tag-output"
    )


def test_mpich() -> None:
    """Nothing is forwarded but what is named; without a name, nothing."""
    assert line(MPICH) == (
        "/opt/mpich/bin/mpiexec -launcher ssh -launcher-exec python -bind-to none -wdir / "
        "-f /run/x/hosts -ppn 2 -genvnone -n 6"
    )
    assert line(MPICH, **FULL) == (
        "/opt/mpich/bin/mpiexec -launcher ssh -launcher-exec python -iface eth0 -bind-to none -wdir / "
        "-f /run/x/hosts -ppn 2 -genv UCX_NET_DEVICES mlx5_0:1,mlx5_1:1 -genvlist HELLO,PATH -n 6 "
        "--tag-output"
    )


def test_intel_mpi() -> None:
    """Its own words for the remote shell; pinning is a variable, and set for all ranks."""
    assert line(INTEL) == (
        "/opt/impi/bin/mpirun -bootstrap ssh -bootstrap-exec python -branch-count 3 -genv I_MPI_PIN 0 "
        "-f /run/x/hosts -ppn 2 -genvnone -n 6"
    )
    assert line(INTEL, **FULL) == (
        "/opt/impi/bin/mpirun -bootstrap ssh -bootstrap-exec python -iface eth0 -branch-count 3 "
        "-genv I_MPI_PIN 0 -f /run/x/hosts -ppn 2 -genv UCX_NET_DEVICES mlx5_0:1,mlx5_1:1 "
        "-genvlist HELLO,PATH -n 6 --tag-output"
    )


def test_the_made_over_families_speak_as_the_original() -> None:
    """Open MPI 3 and Spectrum MPI as 4; MVAPICH as MPICH, and it has a binding of its own to turn off."""
    assert plan_line(job(OPEN_MPI_3, **FULL))[1:] == plan_line(job(OPEN_MPI_4, **FULL))[1:]
    assert plan_line(job(SPECTRUM, **FULL))[1:] == plan_line(job(OPEN_MPI_4, **FULL))[1:]
    extra = set(plan_line(job(MVAPICH))) - set(plan_line(job(MPICH)))
    assert extra == {MVAPICH.path, "-genv", "MV2_ENABLE_AFFINITY", "0"}


@pytest.mark.parametrize("mpi", ALL, ids=str)
def test_hosts_stand_in_the_hostfile_in_order(mpi: Mpi) -> None:
    """With as many slots as ranks, which is never too few, whatever the number of cores."""
    form = "{} slots=2\n" if mpi.dialect == "Open MPI" else "{}:2\n"
    assert render_hostfile(mpi, HOSTS, 2) == "".join(form.format(host) for host in HOSTS)


def test_the_words_of_the_remote_shell_reach_hydra_as_a_variable() -> None:
    """Always, if only to undo the one that Slurm sets; an option says all else."""
    words = "-I -S .../rsh.py /run/x/rsh"
    assert plan_variables(job(MPICH, **FULL)) == (("HYDRA_LAUNCHER_EXTRA_ARGS", words),)
    assert plan_variables(job(MPICH, rsh=("python",))) == (("HYDRA_LAUNCHER_EXTRA_ARGS", ""),)
    assert plan_variables(job(INTEL, **FULL)) == (("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", words),)
    assert plan_variables(job(OPEN_MPI_4, **FULL)) == plan_variables(job(OPEN_MPI_5, **FULL)) == ()


OVERRIDDEN = [
    (OPEN_MPI_4, "--bind-to core", "--bind-to none"),
    (OPEN_MPI_5, "--bind-to core:overload-allowed", "--bind-to none"),
    (OPEN_MPI_4, "-bind-to-core", "--bind-to none"),
    (OPEN_MPI_5, "-np 2", "--np 6"),
    (OPEN_MPI_4, "-N 1", "--map-by ppr:2:node"),
    (OPEN_MPI_4, "--hostfile /mine", "--hostfile /run/x/hosts"),
    (
        OPEN_MPI_4,
        "-mca plm_rsh_agent rsh",
        "--mca plm_rsh_agent python -I -S .../rsh.py /run/x/rsh",
    ),
    (
        OPEN_MPI_5,
        "--mca plm_rsh_agent rsh",
        "--prtemca plm_ssh_agent python -I -S .../rsh.py /run/x/rsh",
    ),
    (OPEN_MPI_5, "--mca btl_tcp_if_exclude lo", "--mca btl_tcp_if_include 10.0.0.0/24"),
    (OPEN_MPI_5, "--prtemca oob_tcp_if_include eth1", "--prtemca prte_if_include 10.0.0.0/24"),
    (OPEN_MPI_4, "--mca pml ob1", "--mca pml ucx"),
    (OPEN_MPI_4, "-x UCX_TLS=tcp", f"-x {UCX}"),
    (OPEN_MPI_4, "-x HELLO=mine", "-x HELLO"),
    (MPICH, "-bind-to core", "-bind-to none"),
    (MPICH, "--ppn 1", "-ppn 2"),
    (MPICH, "-hosts a,b", "-f /run/x/hosts"),
    (MPICH, "-bootstrap rsh", "-launcher ssh -launcher-exec python"),
    (MPICH, "-launcher-exec rsh", "-launcher ssh -launcher-exec python"),
    (MPICH, "-genvall", "-genvlist HELLO,PATH"),
    (INTEL, "-genv I_MPI_PIN 1", "-genv I_MPI_PIN 0"),
    (INTEL, "-iface ib0", "-iface eth0"),
]


@pytest.mark.parametrize(("mpi", "extra", "ours"), OVERRIDDEN, ids=lambda value: str(value)[:40])
def test_what_the_user_says_on_the_line_is_not_said_before(mpi: Mpi, extra: str, ours: str) -> None:
    """No mpirun does well with an option that comes twice."""
    given = {**FULL, "extra": tuple(extra.split())}
    planned = line(mpi, **given)
    assert f" {ours} " in line(mpi, **FULL)
    assert f" {ours} " not in planned and planned.endswith(extra)


def test_a_variable_that_the_user_sets_for_ranks_leaves_the_list() -> None:
    """And if it was the only one, there is no list."""
    words = plan_line(job(MPICH, **{**FULL, "extra": ("-genv", "HELLO", "mine")}))
    assert words[words.index("-genvlist") + 1] == "PATH"
    assert "-genvnone" in plan_line(job(MPICH, forward=("HELLO",), extra=("-genv", "HELLO=mine")))


@pytest.mark.parametrize(
    ("mpi", "user", "ours"),
    [
        (OPEN_MPI_4, "OMPI_MCA_btl_tcp_if_include", "btl_tcp_if_include"),
        (OPEN_MPI_5, "OMPI_MCA_btl_tcp_if_exclude", "btl_tcp_if_include"),
        (OPEN_MPI_5, "PRTE_MCA_prte_if_exclude", "prte_if_include"),
        (OPEN_MPI_5, "PRTE_MCA_oob_tcp_if_exclude", "prte_if_include"),  # its old name, which it reads, too
        (OPEN_MPI_4, "OMPI_MCA_hwloc_base_binding_policy", "--bind-to"),
        (OPEN_MPI_4, "OMPI_MCA_pml", "ucx"),
        (OPEN_MPI_4, "OMPI_MCA_btl", "^openib"),
        (OPEN_MPI_4, "UCX_TLS", "ucx"),
        (OPEN_MPI_5, "UCX_NET_DEVICES", UCX),
        (MPICH, "UCX_NET_DEVICES", "UCX_NET_DEVICES"),
        (MPICH, "HYDRA_IFACE", "-iface"),
        (INTEL, "I_MPI_PIN", "I_MPI_PIN"),
        (INTEL, "I_MPI_HYDRA_IFACE", "-iface"),
    ],
)
def test_what_the_user_has_set_is_left_alone(mpi: Mpi, user: str, ours: str) -> None:
    """But not the remote shell and the hosts."""
    given = {**FULL, "user": (user, "OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER")}
    assert ours in plan_line(job(mpi, **FULL))
    assert ours not in plan_line(job(mpi, **given))
    assert {"python", " ".join(RSH)} & {*plan_line(job(mpi, **given))}


@pytest.mark.parametrize("mpi", ALL, ids=str)
def test_what_mpirun_cannot_be_told_is_an_error(mpi: Mpi) -> None:
    """All of it at once: blanks in the words of the remote shell, an IPv6 address."""
    with pytest.raises(UsageError) as refused:
        job(mpi, rsh=("ssh", "-F", "/my files/x"), hosts=("fd00::1", "node1"))
    assert [problem.code for problem in refused.value.problems] == ["mpirun-line"] * 2
    with pytest.raises(UsageError, match="spaces"):
        job(mpi, rsh=("ssh", ""))


def test_names_that_do_not_arrive_are_known() -> None:
    """Values always do."""
    odd = ("com.nvidia.cuda.version", "BASH_FUNC_x%%", "a b", "-dash", "a,b", "A*", "'q")
    assert [name for name in odd if not carries(OPEN_MPI_5, name)] == ["-dash", "A*"]
    assert [name for name in odd if not carries(MPICH, name)] == ["a,b", "'q"]
    assert [name for name in (*odd, "ü", "1a", "_A9") if carries(INTEL, name)] == ["_A9"]


def test_what_arrives_changed_is_known() -> None:
    """Open MPI that is named by path puts its own folders in front."""
    assert [changed(mpi) for mpi in (OPEN_MPI_4, MPICH, INTEL)] == [("PATH", "LD_LIBRARY_PATH"), (), ()]


def test_the_lines_in_the_documentation_are_those_that_are_planned() -> None:
    """One block per dialect, in this order."""
    blocks = re.findall(r"^```text\n(.*?)^```$", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    given = {**FULL, "ports": (), "extra": ()}
    for block, mpi in zip(blocks, (OPEN_MPI_4, OPEN_MPI_5, MPICH, INTEL), strict=True):
        mpirun = Mpi("/opt/mpi/bin/mpirun", mpi.family, mpi.version)
        assert tuple(shlex.split(block)) == plan_line(job(mpirun, **given)), mpi
