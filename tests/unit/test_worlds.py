"""One job of N, or N jobs of one: what is read of a command before it starts, and what is said of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.command.line import open_shell
from launcher.command.words import may_be_shell
from launcher.core.errors import UsageError
from launcher.core.model import Plan
from launcher.frameworks.script import Script, names_workers, read_imports, read_script
from launcher.machine.host import Host
from launcher.machine.pythons import find_module
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.settings import render_environ

OPTIONAL = "try:\n    from mpi4py import MPI\nexcept ImportError:\n    MPI = None\n"
MPI_RANK = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PER_RANK = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0"}
WORKER = {
    **PER_RANK,
    "TORCHELASTIC_RUN_ID": "none",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


class Made(Host):
    """This machine without accelerators, whose Pythons have some packages and not others."""

    def __init__(self, *absent: str) -> None:
        super().__init__()
        self.absent = absent

    def find_version(self, python: str | None, environ: Mapping[str, str], name: str) -> str | None:
        """Return that a package is there, unless it was made without."""
        return "" if name in self.absent else "1.0"

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Return that there is no device."""
        return () if path == "/dev" else super().list_folder(path)


def plan(
    *command: str, environ: Mapping[str, str] | None = None, host: Host | None = None, **flags: str
) -> Plan:
    """Return the plan for a command of two processes on this node, unless flags or environment say more."""
    given = dict(environ or {})
    typed = {"nproc_per_node": "2", **flags} if not given else flags
    return plan_job(given, host or Made(), read_options(dict(typed), given), command)


def seen(job: Plan, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what the first process of a plan sees."""
    return render_environ(job, job.processes[0], dict(environ or {}))


def told(job: Plan) -> dict[str, str]:
    """Return what all processes of a job have in common, or what its launcher is told."""
    settings = job.agent.settings if job.agent else job.settings
    return {setting.name: setting.value for setting in settings}


def write(folder: Path, text: str, name: str = "train.py") -> str:
    """Write a script."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import mpi4py", True),
        ("import os, mpi4py.MPI as MPI", True),
        ("from mpi4py import MPI", True),
        ("import os; import mpi4py", True),
        ("from mpi4py import (\n    MPI,\n)", True),
        ("if __name__ == '__main__':\n    import mpi4py", True),
        ("with open('x'):\n    import mpi4py", True),
        ("try:\n    import mpi4py\nfinally:\n    pass", True),
        (OPTIONAL, False),
        ("def main():\n    from mpi4py import MPI", False),
        ("if args.mpi:\n    import mpi4py", False),
        ("for x in y:\n    import mpi4py", False),
        ("match x:\n    case 1:\n        import mpi4py", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mpi4py", None),
        ("import typing\nif typing.TYPE_CHECKING:\n    pass\nelse:\n    import mpi4py", True),
        ("import importlib\nimportlib.import_module('mpi4py')", None),
        ("'''\nimport mpi4py\n'''", None),
        ("# import mpi4py", None),
        ("from . import mpi4py\nfrom .mpi4py import x", None),
        ("import mpi4pyro", None),
        ("import x.mpi4py", None),
        ("print 'Python 2'\nimport mpi4py", True),
        ("print 'Python 2'\nif x:\n    import mpi4py", False),
        ("x = '\\d'\nimport mpi4py", True),
    ],
)
def test_imports_are_statements(text: str, expected: bool | None, recwarn: pytest.WarningsRecorder) -> None:
    """True for one that runs whatever happens, False for one that may not run, None for what is none."""
    script = Script("x", text, read_imports(text))
    assert script.imports("mpi4py") is (expected is not None)
    assert script.needs("mpi4py") is bool(expected)
    assert not recwarn.list


@pytest.mark.parametrize("flags", [("-c",), ("-uc",), ("-u", "-c")])
def test_code_on_the_command_line_is_read(flags: tuple[str, ...]) -> None:
    """Behind its flag; right behind the letter, too."""
    code = "import os; import mpi4py"
    assert read_script(("python", *flags, code, "x"), {}, Host()).needs("mpi4py")
    assert read_script(("python", *flags[:-1], f"{flags[-1]}{code}"), {}, Host()).needs("mpi4py")


@pytest.mark.parametrize(
    "line", [("python",), ("python", "-"), ("python", "-m"), ("python", "-c"), ("true",), ()]
)
def test_what_is_no_script_is_none(line: tuple[str, ...]) -> None:
    """Nothing to read, and no error."""
    assert read_script(line, {}, Host()).text == ""


FORBIDDEN = "raise SystemExit('this must not run')\n"


@pytest.mark.parametrize(
    ("files", "name", "expected"),
    [
        (["train.py"], "train", "train.py"),
        (["pkg/__init__.py", "pkg/__main__.py"], "pkg", "pkg/__main__.py"),
        (["pkg/__init__.py", "pkg/sub/__init__.py", "pkg/sub/train.py"], "pkg.sub.train", "pkg/sub/train.py"),
        (["scripts/train.py"], "scripts.train", "scripts/train.py"),
        (["pkg/__main__.py"], "pkg", "pkg/__main__.py"),
        (["pkg/__init__.py", "pkg.py"], "pkg", ""),
        (["pkg.py", "pkg/x.py"], "pkg", "pkg.py"),
        ([], "pkg", ""),
    ],
)
def test_a_module_is_found_and_nothing_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], name: str, expected: str
) -> None:
    """In the working directory and in PYTHONPATH; not in the first where Python is told not to look there."""
    for file in files:
        write(tmp_path, FORBIDDEN, file)
    assert find_module(name, [str(tmp_path / "none"), str(tmp_path)]) == (
        expected and f"{tmp_path}/{expected}"
    )
    asked = {"PYTHONPATH": str(tmp_path)}
    assert read_script(("python", "-m", name), asked, Host()).path == (expected and f"{tmp_path}/{expected}")
    monkeypatch.chdir(tmp_path)
    assert read_script(("python", "-m", name), {}, Host()).path == expected
    assert read_script(("python", f"-um{name}"), {}, Host()).path == expected
    for hidden in (("-I",), ("-P",)):
        assert read_script(("python", *hidden, "-m", name), {}, Host()).path == ""
    assert name not in sys.modules


def test_a_module_of_a_framework_imports_it(tmp_path: Path) -> None:
    """Python imports the packages around it."""
    write(tmp_path, "", "accelerate/__init__.py")
    write(tmp_path, "x = 1\n", "accelerate/checks.py")
    job = plan("python", "-m", "accelerate.checks", environ={"PYTHONPATH": str(tmp_path)}, nproc_per_node="2")
    assert seen(job)["ACCELERATE_USE_CPU"] == "true"


def test_a_folder_is_its_main(tmp_path: Path) -> None:
    """``python FOLDER`` runs FOLDER/__main__.py."""
    write(tmp_path, "import accelerate\n", "__main__.py")
    assert seen(plan("python", str(tmp_path)))["ACCELERATE_USE_CPU"] == "true"


@pytest.mark.parametrize(
    "command", [("python", "-c", "import accelerate"), ("torchrun", "{}"), ("python", "{}")]
)
def test_accelerate_is_told_of_cpus_however_it_is_started(tmp_path: Path, command: tuple[str, ...]) -> None:
    """torchrun's workers start without us, and inherit what torchrun is told."""
    script = write(tmp_path, "import accelerate\n")
    job = plan(*(word.format(script) for word in command))
    assert told(job)["ACCELERATE_USE_CPU"] == "true"
    assert not job.warnings


REFUSED = (
    ("from mpi4py import MPI", ("python",), "--engine mpirun"),
    ("from mpi4py import MPI", ("torchrun",), "--engine mpirun"),
    ("import horovod.torch as hvd", ("torchrun",), "launcher run -- python"),
    ("import horovod.torch as hvd", ("deepspeed",), "launcher run -- python"),
    (
        "import torch.utils.data.distributed\nimport horovod.torch as hvd",
        ("torchrun",),
        "launcher run -- python",
    ),
    (
        "import tensorflow as tf\nx = tf.distribute.MultiWorkerMirroredStrategy()",
        ("torchrun",),
        "launcher run -- python",
    ),
)


@pytest.mark.parametrize(("text", "starter", "fix"), REFUSED)
def test_what_gives_no_world_is_refused(
    tmp_path: Path, text: str, starter: tuple[str, ...], fix: str
) -> None:
    """Each process would be a job of its own, and all would end well; who names a framework knows better."""
    script = write(tmp_path, f"{text}\n")
    with pytest.raises(UsageError) as error:
        plan(*starter, script)
    (problem,) = error.value.problems
    assert problem.code == "lone-processes" and fix in problem.fix
    assert not plan(*starter, script, framework="torch").warnings
    assert not plan(*starter, script, nproc_per_node="1").warnings
    assert not plan(*starter, script, host=Made("mpi4py", "horovod", "tensorflow")).warnings


@pytest.mark.parametrize("text", [OPTIONAL, "import torch\nimport mpi4py\n", "def f():\n    import mpi4py\n"])
def test_what_may_not_be_used_ends_no_job(tmp_path: Path, text: str) -> None:
    """Whether its processes meet is seen when it runs."""
    assert not plan("python", write(tmp_path, text)).warnings


def test_horovod_beside_another_world_ends_no_job(tmp_path: Path) -> None:
    """Its scripts import PyTorch; one that joins PyTorch's processes may do without Horovod's."""
    script = write(
        tmp_path, "import torch\nimport horovod.torch as hvd\ntorch.distributed.init_process_group()\n"
    )
    assert not plan("torchrun", script).warnings


@pytest.mark.parametrize("environ", [MPI_RANK, {**PER_RANK, "MASTER_ADDR": "127.0.0.1", "PMIX_RANK": "1"}])
def test_a_rank_of_mpi_has_its_world(tmp_path: Path, environ: dict[str, str]) -> None:
    """mpirun has started it, or srun with its own PMIx."""
    script = write(tmp_path, "from mpi4py import MPI\n")
    assert not plan("python", script, environ=environ).warnings


@pytest.mark.parametrize("environ", [{**PER_RANK, "MASTER_ADDR": "127.0.0.1"}, WORKER])
def test_a_rank_of_something_else_has_none(tmp_path: Path, environ: dict[str, str]) -> None:
    """Whatever has started it: a platform, a worker of torchrun's. There --engine mpirun alone is no fix."""
    with pytest.raises(UsageError, match="is not mpirun") as error:
        plan("python", write(tmp_path, "from mpi4py import MPI\n"), environ=environ)
    (problem,) = error.value.problems
    assert problem.fix.startswith("let mpirun or srun --mpi=pmix start the launchers; or start one per node")


LIGHTNING = "from lightning.pytorch import Trainer\n"
NUMBERS = {"PL_TRAINER_NUM_NODES": "1", "PL_TRAINER_DEVICES": "2"}
FABRIC = {"LT_NUM_NODES": "1", "LT_DEVICES": "2"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Trainer(max_epochs=1)", NUMBERS),
        ("Trainer(**quiet)", NUMBERS),
        ("Trainer(devices=2)", NUMBERS),
        ("Trainer(devices=n, num_nodes=m)", NUMBERS),
        ("Trainer(); Trainer(devices=1)", NUMBERS),
        ("Trainer(strategy='ddp_spawn')", {}),
        ("Fabric()", FABRIC),
        ("Fabric('cpu', 'ddp', 2)", FABRIC),
        ("Fabric(devices=n)", FABRIC),
        ("Trainer(); Fabric()", {**NUMBERS, **FABRIC}),
        ("x = 1", {}),
    ],
)
def test_a_script_of_lightning_gets_the_numbers_that_it_lacks(
    tmp_path: Path, text: str, expected: dict[str, str]
) -> None:
    """Without any it would train alone in each process; what it says itself is not contradicted."""
    job = plan("python", write(tmp_path, f"{LIGHTNING}{text}\n"))
    found = {name: value for name, value in told(job).items() if name.startswith(("PL_", "LT_"))}
    assert found == expected


def test_a_trainer_for_one_process_is_not_told_of_other_nodes(tmp_path: Path) -> None:
    """It would wait for them."""
    nodes: dict[str, Any] = {"nnodes": "2", "node_rank": "0", "master_addr": "10.0.0.4"}
    job = plan("python", write(tmp_path, f"{LIGHTNING}Trainer()\nTrainer(devices=1)\n"), **nodes)
    assert not {*NUMBERS} & {*told(job)}


@pytest.mark.parametrize(
    ("text", "is_needed"),
    [
        ("c = json.loads(os.environ['TF_CONFIG'])\nos.environ['TF_CONFIG'] = json.dumps(c)", True),
        ("if 'TF_CONFIG' not in os.environ:\n    os.environ['TF_CONFIG'] = x", True),
        ("c = os.environ.get('TF_CONFIG')", True),
        ("if os.environ['TF_CONFIG'] == '':\n    pass", True),
        ("os.environ['TF_CONFIG'] = json.dumps(c)\nprint(os.environ['TF_CONFIG'])", False),
        ('os.environ["TF_CONFIG"]=json.dumps(c)', False),
    ],
)
def test_who_reads_tf_config_first_needs_it(text: str, is_needed: bool) -> None:
    """One that edits what is there is no one that writes its own."""
    whole = f"import tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy()\n{text}\n"
    assert names_workers(Script("x", whole, read_imports(whole))) is is_needed


def test_a_script_that_edits_tf_config_gets_one(tmp_path: Path) -> None:
    """Azure ML's own example drops an empty ``ps`` and writes it back."""
    text = """
import json, os
import tensorflow as tf
config = json.loads(os.environ["TF_CONFIG"])
if not config["cluster"].get("ps"):
    config["cluster"].pop("ps", None)
    os.environ["TF_CONFIG"] = json.dumps(config)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
"""
    assert "TF_CONFIG" in seen(plan("python", write(tmp_path, text)))


COORDINATOR = "JAX_COORDINATOR_ADDRESS"
JAX = "import jax\njax.distributed.initialize()\n"


def test_jax_meets_beside_torchruns_agent(tmp_path: Path) -> None:
    """The agent listens at MASTER_PORT: a coordinator there would end rank 0 by SIGSEGV."""
    script = write(tmp_path, JAX)
    assert seen(plan("python", script, environ=WORKER), WORKER)[COORDINATOR] == "127.0.0.1:29501"
    nodes: dict[str, Any] = {
        "nnodes": "2",
        "node_rank": "1",
        "master_addr": "10.0.0.4",
        "master_port": "65535",
    }
    started = plan("python", script, engine="torchrun", **nodes)
    assert seen(started)[COORDINATOR] == "10.0.0.4:65534"
    assert told(plan("torchrun", script, **nodes))[COORDINATOR] == "10.0.0.4:65534"
    assert seen(plan("python", script, **nodes))[COORDINATOR] == "10.0.0.4:65535"
    given = {**WORKER, COORDINATOR: "other:1"}
    assert seen(plan("python", script, environ=given), given)[COORDINATOR] == "other:1"


@pytest.mark.parametrize(
    "text",
    [
        "from jax import distributed\ndistributed.initialize()\n",
        "import jax as j; j.distributed.initialize()",
    ],
)
def test_jax_is_found_under_other_names(text: str) -> None:
    """In code on the command line, too."""
    assert "OMPI_MCA_orte_hnp_uri" in seen(plan("python", "-c", text))


def test_a_program_of_another_kind_is_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing behind it is read, not even a Python among its arguments."""
    script = write(tmp_path, "import mpi4py\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for command in (("unheard-of", "python", script), ("ls", "python", script), ("LR=1", "python")):
        assert read_script(command, dict(os.environ), Made()) == Script()


@pytest.mark.parametrize(
    "call",
    [
        '"/env with a blank/bin/python3"',
        "'/env/bin/python'",
        '"$(dirname -- "$(realpath -- "$0")")"/\'python3\'',
    ],
    ids=["pip", "uv", "uv-relocatable"],
)
def test_a_console_script_with_a_long_path_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A first line is too short for it, so pip and uv write one of a shell."""
    (tmp_path / "mypkg").mkdir()
    write(tmp_path / "mypkg", "import mpi4py\n", "cli.py")
    monkeypatch.chdir(tmp_path)
    start = f"'''exec' {call} \"$0\" \"$@\"\n' '''"
    text = f"#!/bin/sh\n{start}\nimport sys\nfrom mypkg.cli import main\nsys.exit(main())\n"
    program = write(tmp_path, text, "mytrain")
    Path(program).chmod(0o755)
    environ = {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    assert read_script(("mytrain", "--x"), environ, Host()).needs("mpi4py")
    assert not may_be_shell((program,))


def test_a_shell_that_names_a_launcher_is_warned_about(tmp_path: Path) -> None:
    """Each of the processes would start a node's processes again; one for several nodes may be right."""
    path = write(
        tmp_path, "#!/bin/bash\n# torchrun\nexport A=1\ntorchrun --nproc-per-node 2 x.py\n", "run.sh"
    )
    Path(path).chmod(0o755)
    text = "A=1 /opt/bin/deepspeed x.py"
    for command in (
        (path,),
        ("bash", "-e", "-o", "pipefail", path),
        ("bash", "-c", text),
        ("bash", "-lc", text),
        ("env", "NGPU=2", path),
        ("timeout", "1h", "nice", "bash", path),
        ("nice", "bash", "-o", "pipefail", "-c", text),
    ):
        (warning,) = plan(*command).warnings
        assert "which may start all processes of a node, and is started 2 times on this node" in warning
        assert not plan(*command, nproc_per_node="1").warnings
    nodes: dict[str, Any] = {
        "nnodes": "2",
        "node_rank": "0",
        "master_addr": "10.0.0.4",
        "nproc_per_node": "1",
    }
    assert "is started once on each node" in plan(path, **nodes).warnings[0]
    assert plan("nice", "bash", "-lc", text).warnings[0].startswith("bash -c names deepspeed, ")
    write(tmp_path, "torchrun --master-addr $MASTER_ADDR x.py\n", "run.sh")
    assert not plan("bash", path, **nodes).warnings
    assert not plan("bash", "-c", "echo torchruns && python x.py").warnings


@pytest.mark.parametrize(
    ("command", "opened"),
    [
        (("sh", "-c", "python train.py --lr 0.1"), ("python", "train.py", "--lr", "0.1")),
        (("/bin/bash", "-ec", " exec torchrun x.py\n"), ("torchrun", "x.py")),
        (("bash", "-c", "python train.py --lr $LR"), ()),
        (("bash", "-c", "A=1 python train.py"), ()),
        (("bash", "-c", "python a.py; python b.py"), ()),
        (("bash", "-c", "python 'a b.py'"), ()),
        (("bash", "-c", "python a.py\npython b.py"), ()),
        (("bash", "-lc", "python a.py"), ()),
        (("bash", "-c", "ls x"), ()),
        (("bash", "-c", ""), ()),
        (("bash", "-c", "python a.py", "0"), ()),
    ],
)
def test_a_shell_that_only_starts_python_is_left_out(
    command: tuple[str, ...], opened: tuple[str, ...]
) -> None:
    """Signals reach the program directly, and its script shows its framework."""
    assert open_shell(command) == (opened or command)


@pytest.mark.parametrize(
    ("text", "is_noted"),
    [
        ("python x.py 2>&1 | tee log", True),
        ("cd /job\n/opt/bin/torchrun x.py >out |& tee log", True),
        ("set -o pipefail; python x.py | tee log", False),
        ("python x.py || exit 1", False),
        ("# python x.py | tee log", False),
        ("ls | tee log; python x.py", False),
    ],
)
def test_a_pipeline_that_loses_a_status_is_noted(tmp_path: Path, text: str, is_noted: bool) -> None:
    """Its status is that of ``tee``."""
    path = write(tmp_path, text, "run.sh")
    for command in (("bash", "-c", text), ("bash", path), ("bash", "-lc", text), ("nice", "sh", "-e", path)):
        notes = plan(*command, nproc_per_node="1").notes
        assert any("`set -o pipefail` before it" in note for note in notes) is is_noted
