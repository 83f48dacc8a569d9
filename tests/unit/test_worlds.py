"""One job of N, or N jobs of one: what is read of a command before it starts, and what is said of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.core.errors import UsageError
from launcher.core.model import Plan
from launcher.frameworks.imports import read_first, read_imports
from launcher.frameworks.script import Script, read_script
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

    def find_version(self, python: str, environ: Mapping[str, str], name: str) -> str | None:
        """Return that a package is there, unless it was made without."""
        return "" if name in self.absent else "1.0"

    def find_torch(self, python: str | None, environ: Mapping[str, str]) -> str | None:
        """Return that there is torch."""
        return "2.13.0"

    def gpu_count(self) -> int | None:
        """Return that there is no GPU."""
        return 0


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


@pytest.mark.parametrize(("call", "is_said"), [("PartialState()", True), ("PartialState(cpu=True)", False)])
def test_a_partial_state_is_warned_about(tmp_path: Path, call: str, is_said: bool) -> None:
    """Of Accelerate 1.15 it reads no variable for CPUs: only its argument counts."""
    script = write(tmp_path, f"from accelerate import PartialState\nstate = {call}\n")
    assert any("PartialState" in warning for warning in plan("python", script).warnings) is is_said


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
def test_what_may_not_be_used_is_a_warning(tmp_path: Path, text: str) -> None:
    """An import that may not happen ends no job; where the package is not there, nothing is said."""
    script = write(tmp_path, text)
    (warning,) = plan("python", script).warnings
    assert "mpi4py" in warning and "--engine mpirun" in warning
    assert not plan("python", script, host=Made("mpi4py")).warnings


def test_horovod_beside_another_world_is_a_warning(tmp_path: Path) -> None:
    """Its scripts import PyTorch; one that joins PyTorch's processes may do without Horovod's."""
    script = write(
        tmp_path, "import torch\nimport horovod.torch as hvd\ntorch.distributed.init_process_group()\n"
    )
    (warning,) = plan("torchrun", script).warnings
    assert "horovod" in warning


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
        ("Fabric(devices=n)", {"LT_NUM_NODES": "1"}),
        ("Fabric(); Fabric(devices=1)", {}),
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


@pytest.mark.parametrize(
    "text", ["Trainer(devices='auto')", "Fabric(devices='auto')", "Fabric('cpu', 'ddp', 1)"]
)
def test_numbers_of_one_process_are_refused(tmp_path: Path, text: str) -> None:
    """On CPUs all devices are one."""
    with pytest.raises(UsageError, match="the job has 2 processes per node"):
        plan("python", write(tmp_path, f"{LIGHTNING}{text}\n"))


def test_a_trainer_for_one_process_is_not_told_of_other_nodes(tmp_path: Path) -> None:
    """It would wait for them; the other Trainer is warned about instead."""
    nodes: dict[str, Any] = {"nnodes": "2", "node_rank": "0", "master_addr": "10.0.0.4"}
    job = plan("python", write(tmp_path, f"{LIGHTNING}Trainer()\nTrainer(devices=1)\n"), **nodes)
    assert not {*NUMBERS} & {*told(job)}
    assert any("this Trainer has no num_nodes and devices" in warning for warning in job.warnings)


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        ((), "--trainer.devices 2"),
        (("--trainer.devices", "2"), ""),
        (("--config", "x.yaml"), ""),
    ],
)
def test_lightnings_command_line_is_told_what_it_lacks(
    tmp_path: Path, words: tuple[str, ...], lacks: str
) -> None:
    """LightningCLI reads no variable, and always gives its Trainer all numbers."""
    script = write(tmp_path, "from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n")
    warnings = plan("python", script, "fit", *words).warnings
    assert [lacks in warning for warning in warnings] == ([True] if lacks else [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c = json.loads(os.environ['TF_CONFIG'])\nos.environ['TF_CONFIG'] = json.dumps(c)", "Load"),
        ("os.environ['TF_CONFIG'] = json.dumps(os.environ['TF_CONFIG'])", "Load"),
        ("if 'TF_CONFIG' not in os.environ:\n    os.environ['TF_CONFIG'] = x", "Load"),
        ("c = os.environ.get('TF_CONFIG')", "Load"),
        ("os.environ['TF_CONFIG'] = json.dumps(c)\nprint(os.environ['TF_CONFIG'])", "Store"),
        ("# os.environ['TF_CONFIG'] = x\nos.getenv('TF_CONFIG')", "Load"),
        ("# TF_CONFIG", ""),
    ],
)
def test_who_reads_a_variable_first_needs_it(text: str, expected: str) -> None:
    """One that edits what is there is no one that writes its own."""
    assert read_first(text, "TF_CONFIG") == expected


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


MPI = "from mpi4py import MPI\n"


@pytest.mark.parametrize(
    ("script", "files"),
    [
        ("import mod\n", {"mod.py": MPI}),
        ("from mod import x\n", {"mod.py": MPI}),
        (
            "from pkg import (\n    other,\n    mod,  # this one\n)\n",
            {"pkg/__init__.py": "", "pkg/mod.py": MPI},
        ),
        ("import pkg.sub\n", {"pkg/__init__.py": MPI, "pkg/sub.py": ""}),
        (
            "import pkg\n",
            {"pkg/__init__.py": "from .a import b\n", "pkg/a.py": "from . import c\n", "pkg/c.py": MPI},
        ),
        ("import space.mod\n", {"space/mod.py": MPI}),
        ("import one\n", {"one.py": "import two\n", "two.py": "import three\n", "three.py": MPI}),
        ("import elsewhere\n", {"../lib/elsewhere.py": MPI}),
    ],
)
def test_an_import_one_step_away_is_one(tmp_path: Path, script: str, files: dict[str, str]) -> None:
    """In files beside the script and in PYTHONPATH; nothing is imported."""
    for name, text in files.items():
        write(tmp_path / "job", f"{text}{FORBIDDEN}", name)
    path = write(tmp_path / "job", script)
    environ = {"PYTHONPATH": str(tmp_path / "lib")}
    with pytest.raises(UsageError, match=r"imports mpi4py \(in .*\.py\)") as error:
        plan("python", path, environ=environ, nproc_per_node="2")
    assert error.value.problems[0].code == "lone-processes"
    assert not plan("python", path, environ=environ, nproc_per_node="1").warnings
    assert not plan("python", path, environ={**environ, **MPI_RANK}).warnings


@pytest.mark.parametrize(
    ("script", "files"),
    [
        ("try:\n    import mod\nexcept ImportError:\n    pass\n", {"mod.py": MPI}),
        ("def main():\n    import mod\n", {"mod.py": MPI}),
        ("import mod\n", {"mod.py": OPTIONAL}),
        ("import mod\n", {"mod.py": "def f():\n    import mpi4py\n"}),
        ("import mod\n", {"mod.py": "'''\nimport mpi4py\n'''\n"}),
        ("'''\nimport mod\n'''\n", {"mod.py": MPI}),
        ("import mod\n", {"mod.py": "import json\n", "json.py": MPI}),
        ("import a\n", {"a.py": "import b\n", "b.py": "import c\n", "c.py": "import d\n", "d.py": MPI}),
        ("import a\n", {"a.py": "import a\n"}),
        ("import mod\n", {"site-packages/mod.py": MPI}),
    ],
)
def test_an_import_that_may_not_happen_is_none(tmp_path: Path, script: str, files: dict[str, str]) -> None:
    """Nor one of what is installed, nor one further away than is looked; of others nothing is said."""
    for name, text in files.items():
        write(tmp_path, text, name)
    environ = {"PYTHONPATH": str(tmp_path / "site-packages")}
    assert not plan("python", write(tmp_path, script), environ=environ, nproc_per_node="2").warnings


def test_a_module_of_pytorch_makes_mpi_possible(tmp_path: Path) -> None:
    """As in the script itself: the world may be PyTorch's."""
    write(tmp_path, MPI, "mod.py")
    write(tmp_path, "import torch\n", "model.py")
    (warning,) = plan("python", write(tmp_path, "import mod, model\n")).warnings
    assert "where it is used" in warning


def test_a_module_finds_what_is_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-m pkg.train``: its package is imported before, and its dots start there."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "", "pkg/__init__.py")
    write(tmp_path, MPI, "pkg/mod.py")
    write(tmp_path, "from . import mod\n", "pkg/train.py")
    write(tmp_path, "from .pkg import mod\n", "pkg/__main__.py")
    with pytest.raises(UsageError, match=r"in pkg/mod\.py"):
        plan("python", "-m", "pkg.train")
    assert not plan("python", "-m", "pkg").warnings
    with pytest.raises(UsageError, match=r"in mod\.py"):
        monkeypatch.chdir(tmp_path / "pkg")
        plan("python", "-c", "import mod")


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("python {}\n", True),
        ("export A=1\npython {} --lr $LR\n", True),
        ('python -u {} "$@"\n', True),
        ("python $FLAGS {}\n", False),
        ("export A=1\nA=2 python {} > log\n", True),
        ("python prepare.py\npython {}\n", True),
        ("cd /job && python {}\n", True),
        ("if x; then\n  python {}\nfi\n", False),
        ("mpirun -np 2 python {}\n", False),
        ("cat <<E\npython {}\nE\n", False),
    ],
)
def test_a_shell_file_is_read_for_what_it_runs(tmp_path: Path, text: str, is_refused: bool) -> None:
    """Lines that run whatever happens."""
    script = write(tmp_path, MPI)
    path = write(tmp_path, f"#!/bin/bash\n{text.format(script)}", "run.sh")
    Path(path).chmod(0o755)
    for command in ((path,), ("bash", path), ("bash", "-c", text.format(script))):
        if is_refused:
            with pytest.raises(UsageError, match="imports mpi4py"):
                plan(*command)
        else:
            assert not plan(*command).warnings


def test_a_script_behind_cd_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file of that name stands there."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, MPI)
    assert not plan("sh", "-c", "cd /job && A=1 python train.py").warnings
    with pytest.raises(UsageError, match="imports mpi4py"):
        plan("sh", "-c", "A=1 python train.py")


@pytest.mark.parametrize("text", ["export A=1\npython {}\n", "cd {folder}\npython -u train.py $@\n"])
def test_a_script_in_a_shell_file_shows_its_framework(tmp_path: Path, text: str) -> None:
    """What its processes are told does not depend on how many lines are around it."""
    script = write(tmp_path, LIGHTNING + "Trainer()\n")
    path = write(tmp_path, text.format(script, folder=tmp_path), "run.sh")
    assert told(plan("bash", path))["PL_TRAINER_DEVICES"] == "2"
    write(tmp_path, "import accelerate\n")
    assert told(plan("bash", path))["ACCELERATE_USE_CPU"] == "true"
    write(tmp_path, "import jax\njax.distributed.initialize()\n")
    assert any("this is a job of jax" in note for note in plan("bash", path).notes)
    other = write(tmp_path, "import lightning\n", "other.py")
    more = write(tmp_path, f"python {other}\n{text.format(script, folder=tmp_path)}", "more.sh")
    assert not any("this is a job of" in note for note in plan("bash", more).notes)


@pytest.mark.parametrize(("flags", "is_said"), [("", True), ("--trainer.devices 2", False), ("$@", False)])
def test_arguments_are_those_of_the_line(tmp_path: Path, flags: str, is_said: bool) -> None:
    """Of a script in a shell file they stand there; what a variable holds is not known."""
    script = write(tmp_path, "from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n")
    path = write(tmp_path, f"export A=1\npython {script} fit {flags}\n", "run.sh")
    assert any("LightningCLI" in warning for warning in plan("bash", path).warnings) is is_said
