"""Shells that only start one program, compared with what a real shell makes of the same string."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.cli.entry import main
from launcher.command.shell import Text, list_calls, open_shell
from launcher.command.shell_lines import find_pipelines, read_lines

Planner = Callable[..., tuple[int, str, str]]
Checker = Callable[..., str]
SHOW = "import json, sys; print(json.dumps(sys.argv[1:]))"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python train.py --lr 0.1", ("python", "train.py", "--lr", "0.1")),
        ("exec python3 -m pkg.train", ("python3", "-m", "pkg.train")),
        ("torchrun --nproc_per_node=2 train.py", ("torchrun", "--nproc_per_node=2", "train.py")),
        ("python train.py 'a b' \"c d\"e ''", ("python", "train.py", "a b", "c de", "")),
        ("  python train.py  \n", ("python", "train.py")),
    ],
)
def test_one_command_is_what_the_shell_would_start(text: str, words: tuple[str, ...]) -> None:
    """Whatever shell: its words are the command."""
    assert open_shell(("/bin/sh", "-c", text)) == words
    assert open_shell(("bash", "-ec", text)) == words


@pytest.mark.parametrize(
    "text",
    [
        *(
            "cd /job && python train.py",
            "python train.py; echo done",
            "python train.py > log",
            "python a | tee b",
        ),
        *(
            "LR=1 python train.py",
            "python train.py $LR",
            "python train.py `x`",
            "python train.py *.txt",
            "python x~",
        ),
        *('python "$X"', "python 'a", "python a\\\\ b", "echo hello", "exit 3", "", "exec", "python {a,b}"),
    ],
)
def test_what_needs_a_shell_stays_with_it(text: str) -> None:
    """Several commands, variables, patterns, redirections, and programs that are nothing to us."""
    command = ("sh", "-c", text)
    assert open_shell(command) == command


def test_other_uses_of_a_shell_stay_as_they_are() -> None:
    """A script, arguments behind the string, a login shell with its profile."""
    for words in (("sh", "train.sh"), ("sh",), ("sh", "-c", "python a", "name"), ("bash", "-lc", "python a")):
        assert open_shell(words) == words


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab -=/'\"\t$;#\\\\~*é%", max_size=12))
def test_words_are_a_real_shells(rest: str) -> None:
    """What `read_lines` takes apart a real shell takes apart in the same way."""
    lines = read_lines(f"python {rest}")
    if len(lines) != 1 or not lines[0].is_plain:
        return
    words = lines[0].words
    line = ["/bin/sh", "-c", f'"$0" -c "$1" {rest}', sys.executable, SHOW]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    assert tuple(json.loads(done.stdout)) == words[1:]


def write(folder: Path, text: str, name: str = "run.sh") -> str:
    """Write a file that can be executed."""
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/bash\ntorchrun --nproc_per_node=2 x.py\n", ("torchrun", "--nproc_per_node=2", "x.py")),
        ("#!/usr/bin/env bash\n# start\nset -euo pipefail\n\nexec python x.py\n", ("python", "x.py")),
        ("#!/bin/sh -e\npython \\\n  -m pkg.train 'a b' # now\n", ("python", "-m", "pkg.train", "a b")),
        ("#!/bin/bash\nset -x; python x.py", ("python", "x.py")),
    ],
)
def test_a_file_of_one_command_is_that_command(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    """However it is started; its arguments are for variables, which it does not have."""
    path = write(tmp_path, text)
    assert open_shell((path,)) == open_shell((path, "--lr", "1")) == words
    assert open_shell(("bash", path)) == open_shell(("bash", "-e", "-o", "pipefail", path, "1")) == words


@pytest.mark.parametrize(
    "text",
    [
        *("#!/bin/bash\nexport A=1\ntorchrun x.py\n", "#!/bin/bash\nA=1 torchrun x.py\n"),
        *('#!/bin/bash\ntorchrun x.py "$@"\n', "#!/bin/bash\ntorchrun x.py | tee log\n"),
        *("#!/bin/bash\nif true; then\ntorchrun x.py\nfi\n", "#!/bin/bash\ntorchrun x.py\nexit 0\n"),
        *("#!/bin/bash -l\ntorchrun x.py\n", "#!/usr/bin/python\ntorchrun x.py\n", "torchrun x.py\n"),
        *("#!/bin/bash\nset -o noexec\ntorchrun x.py\n", "#!/bin/bash\npython - <<E\ntorchrun x.py\nE\n"),
        *("#!/bin/bash\ntorchrun x.py 'a\n", "#!/bin/bash\n", "", "#!/bin/bash\n> log\ntorchrun x.py\n"),
        *(
            "#!/bin/bash\ntorchrun x.py; ;\n",
            "#!/bin/bash\ntorchrun x.py\n}\n",
            "#!/bin/bash\nA=1\npython x\n",
        ),
        *("#!/bin/bash\npython x.py\nif\n", "#!/bin/bash\npython x.py\ntrue &&\n"),
    ],
)
def test_a_file_that_does_more_stays_with_its_shell(tmp_path: Path, text: str) -> None:
    """A profile, variables, a second command, another interpreter, and what cannot be followed."""
    command = (write(tmp_path, text),)
    assert open_shell(command) == command


def test_a_file_that_cannot_be_executed_is_not_opened(tmp_path: Path) -> None:
    """The start fails, as it would without us; for a shell it is a text like any other."""
    path = tmp_path / "run.sh"
    path.write_text("#!/bin/bash\ntorchrun x.py\n")
    assert open_shell((str(path),)) == (str(path),)
    assert open_shell(("bash", str(path))) == ("torchrun", "x.py")
    assert open_shell(("bash", "-l", str(path))) == ("bash", "-l", str(path))


@pytest.mark.parametrize(
    ("text", "is_certain"),
    [
        *(("GO", True), ("export A=1\nGO", True), ("A=1 GO > log 2>&1", True), ("GO | tee log", True)),
        *(("cd /job && GO", True), ("env A=1 GO", True), ("time GO; date", True), ("GO &\nwait", True)),
        *(("x=$(date; ls) GO", True), ("GO || exit 1", True), ("cd x || exit 1\nGO", True)),
        *(("if true; then\n GO\nfi", False), ("true && GO", False), ("true || GO", False)),
        *(("true &&\n GO", False), ("for i in 1 2; do GO; done", False), ("while true; do GO; done", False)),
        *(("case $x in\n a) GO ;;\n esac", False), ("f() {\n GO\n}", False), ("( GO )", False)),
        *(("function f { GO\n}", False), ("[ $R = 0 ] || exit 0\nGO", False), ("{ GO; }", False)),
        *(("if a; then exit; fi\nGO", False), ("if a; then exit 3; fi\nGO", True), ("exit 0\nGO", None)),
        *(("if a; then b; fi\nGO", True), ("f() {\n a\n}\nGO", True), ("for i in 1; do a; done; GO", True)),
        *(("cat > f <<E\nGO\nE\ndate", None), ("cat > f <<-'E' && GO\nx\n\tE", False), ("# GO", None)),
        *(
            ("echo GO", None),
            ("echo 'a\nGO\n'", None),
            ("exec sleep 1\nGO", None),
            ("exec > >(tee x)\nGO", True),
        ),
        *(('echo "$(GO)"', None), ("case x in a) b;; (c) d;; esac\nGO", True), ("'a\nGO", None)),
    ],
)
def test_a_command_is_certain_or_not(text: str, is_certain: bool | None) -> None:
    """None: it is not a command of this text, or it is never reached."""
    lines = list_calls(Text("x", text.replace("GO", "torchrun x.py")))
    found = [line.is_certain for line in lines if line.words[0] == "torchrun"]
    assert found == ([] if is_certain is None else [is_certain])


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab -='\"$;#\\~*{}()<>|&\n", max_size=16))
def test_any_text_is_read_to_an_end(text: str) -> None:
    """Whatever it is."""
    assert isinstance(read_lines(text), list)


LONE = "#!/bin/bash\nexport A=1\n{} x.py\n"


@pytest.fixture
def plan(capfd: pytest.CaptureFixture[str]) -> Planner:
    """Return what plans a job of such a file, as ``launcher plan``: its status, its output, its errors."""

    def plan(path: str, *words: str, **variables: str) -> tuple[int, str, str]:
        status = main(["plan", *words, "--", path], {"PATH": os.defpath, **variables})
        return status, *capfd.readouterr()

    return plan


@pytest.fixture
def check(plan: Planner) -> Checker:
    """Return what says the code of what is wrong with such a job, a warning's first words, or nothing."""

    def check(path: str, *words: str, **variables: str) -> str:
        status, out, err = plan(path, *words, **variables)
        if status:
            return err.partition("[")[2].partition("]")[0]
        return "calls" if "is itself started" in out else ""

    return check


NODES = ("--nnodes", "2", "--node-rank", "0", "--master-addr", "10.0.0.4", "--nproc-per-node", "1")


@pytest.mark.parametrize(
    ("line", "on_nodes", "on_one"),
    [
        ("torchrun", "contradiction", "launcher-per-process"),
        ("torchrun --standalone --nproc_per_node $N", "contradiction", "launcher-per-process"),
        ("python -m torch.distributed.run --nnodes 1", "contradiction", "launcher-per-process"),
        ("torchrun --nnodes=1:1 --nproc_per_node=2", "contradiction", "launcher-per-process"),
        ("accelerate launch --num_processes 2", "contradiction", "launcher-per-process"),
        ("deepspeed --num_gpus 2", "contradiction", "launcher-per-process"),
        ("cd sub && torchrun", "contradiction", "launcher-per-process"),
        ("torchrun --nnodes $GROUP_WORLD_SIZE", "", "calls"),
        ("torchrun --nnodes=2 --node_rank=$X", "", "calls"),
        ('torchrun "$@"', "", "calls"),
        ("torchrun $ARGS", "", "calls"),
        ("torchrun ${1:-main.py}", "contradiction", "launcher-per-process"),
        ("torchrun ${ARGS:-}", "", "calls"),
        ('torchrun --nnodes=1 "$@"', "contradiction", "launcher-per-process"),
        ("torchrun --standalone $ARGS", "contradiction", "launcher-per-process"),
        ("torchrun --nproc_per_node=2 ${DIR}/train.py", "contradiction", "launcher-per-process"),
        ("export PET_NNODES=$X; torchrun", "", "calls"),
        ("[ $RANK = 1 ] || torchrun", "", "calls"),
        ("accelerate launch --config_file c.yaml", "", "calls"),
        ("accelerate launch --num_machines 2 --machine_rank $R", "contradiction", "launcher-per-process"),
        ("accelerate launch --multi_gpu --num_machines 2 --machine_rank $R", "", "calls"),
        ("deepspeed --hostfile hosts", "", "calls"),
        ("mpirun -np 2 python", "job-per-node", "calls"),
        ("NP=2; mpiexec -n $NP -H $HOSTS python", "job-per-node", "calls"),
        ("horovodrun -np 2 python", "job-per-node", "calls"),
        ("mpirun -np 1 hostname", "", "calls"),
        ("[ $NODE_RANK = 1 ] || mpirun -np 2 python", "", "calls"),
        ("launcher run -- torchrun", "", ""),
        ("torchrun --help #", "", "calls"),
    ],
)
def test_a_launcher_in_a_shell_file_knows_only_its_line(
    tmp_path: Path, check: Checker, line: str, on_nodes: str, on_one: str
) -> None:
    """Once on each of two nodes: a job for each; twice on one node: two launchers for the same processes."""
    path = write(tmp_path, LONE.format(line))
    assert check(path, *NODES) == on_nodes
    assert check(path, "--nproc-per-node", "2") == on_one
    assert check(path, "--nproc-per-node", "1") == ""
    assert check(path, "--nproc-per-node", "2", "--engine", "process") == ("calls" if on_one else "")


def test_the_fix_leaves_out_what_is_wrong(tmp_path: Path, plan: Planner) -> None:
    """The line as it can be typed, and what stands in the file where it has to stay one."""
    line = "torchrun --standalone --nnodes 1 --nproc_per_node 2 --rdzv_endpoint=localhost:0"
    path = write(tmp_path, LONE.format(line))
    _, _, told = plan(path, *NODES)
    assert "launcher run -- torchrun --nproc_per_node 2 x.py;" in told
    assert "torchrun --nnodes $GROUP_WORLD_SIZE --node-rank $NODE_RANK" in told


def test_a_platform_that_starts_each_process_is_told_so(tmp_path: Path, plan: Planner) -> None:
    """Nothing there is started once per node by us."""
    path = write(tmp_path, LONE.format("torchrun"))
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    status, _, told = plan(path, **ranks, MASTER_ADDR="127.0.0.1")
    assert status == 64 and "[launcher-per-process]" in told
    assert "one launcher per node: launcher run -- torchrun x.py" in told


def test_other_nodes_can_be_in_a_file(tmp_path: Path, check: Checker) -> None:
    """accelerate reads one unasked; PET_* reach a torchrun only where the launcher becomes the shell."""
    path = write(tmp_path, LONE.format("accelerate launch"))
    folder = tmp_path / "accelerate"
    folder.mkdir()
    (folder / "default_config.yaml").write_text("num_machines: 2\n")
    assert check(path, *NODES, HF_HOME=str(tmp_path)) == ""
    path = write(tmp_path, LONE.format("torchrun"))
    torch = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0"}
    assert check(path, MASTER_ADDR="10.0.0.4", **torch) == "contradiction"
    mpi = {"RANK": "0", "SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "1", "NODE_RANK": "0"}
    ranks = {f"OMPI_COMM_WORLD_{name}": value for name, value in mpi.items()}
    assert check(path, "--master-addr", "10.0.0.4", **ranks) == "contradiction"
    assert check(path, "--master-addr", "10.0.0.4", PET_NNODES="2", **ranks) == ""
    assert check(path, *NODES, PET_NNODES="2") == "contradiction"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python x.py 2>&1 | tee log", ("python", "x.py")),
        ("cd /job\npython x.py >out |& tee log", ("python", "x.py")),
        ("python x.py || exit 1", None),
        ("echo 'python x.py | tee'", None),
    ],
)
def test_what_writes_into_a_pipe_is_found(text: str, words: tuple[str, ...] | None) -> None:
    """Its status is lost, without pipefail."""
    found = find_pipelines(text)
    assert (found[0] if found else None) == words


@pytest.mark.parametrize(
    ("command", "is_noted"),
    [
        (("bash", "-c", "python x.py | tee log"), True),
        (("bash", "-c", "torchrun x.py 2>&1 | tee log"), True),
        (("bash", "-c", "OMP_NUM_THREADS=1 python x.py | tee log"), True),
        (("bash", "-c", "set -o pipefail; python x.py | tee log"), False),
        (("bash", "-eo", "pipefail", "-c", "python x.py | tee log"), False),
        (("bash", "-c", "cat list | xargs -n1 echo; python x.py"), False),
    ],
)
def test_the_plan_notes_a_pipeline_that_loses_a_status(
    command: tuple[str, ...], is_noted: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """`set -o pipefail` keeps it."""
    main(["plan", "--nproc-per-node", "1", "--", *command])
    assert ("`set -o pipefail` before it" in "".join(capfd.readouterr())) is is_noted
