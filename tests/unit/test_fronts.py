"""Programs in front of a command are looked behind, however many there are."""

from __future__ import annotations

import time

import pytest

from launcher.command.fronts import find_front, look_behind, read_fronts
from launcher.command.line import plan_argv
from launcher.command.request import read_request
from launcher.command.words import reads_program
from launcher.core.errors import UsageError
from launcher.hang.recorder import find_python
from launcher.machine.host import Host
from launcher.options.reading import Options
from launcher.planning.plan import plan_job

ENVIRON = {"PATH": "/usr/bin"}
SCRIPT = "/py train.py --x 1"
RUN = "torchrun --standalone train.py"


def behind(line: str) -> str:
    """Return the command behind the fronts of a line, its Python written ``/py``."""
    words = look_behind(tuple(line.split()), ENVIRON)
    return " ".join(("/py" if "python" in words[0] else words[0], *words[1:]))


@pytest.mark.parametrize(
    "front",
    [
        *("env", "env A=1 B=2", "env -u A -C /tmp A=1", "env -i A=1", "/usr/bin/env A=b=c"),
        *("nice", "nice -n 5", "nice --adjustment=5", "nice -5", "timeout 5m", "timeout -k 5 -s INT 1h"),
        *("timeout --foreground --signal=KILL 9", "stdbuf -oL", "stdbuf -o L -e L", "taskset -c 0-3"),
        *("taskset 0xff", "numactl --cpunodebind=0 --membind=0", "numactl -N 0 -m 0", "chrt -f 10"),
        *("ionice -c 2 -n 0", "ionice -c3", "setsid", "setsid -w", "nohup", "time -p", "catchsegv"),
        *("xvfb-run -a", "xvfb-run -s screen", "strace -f -o out", "strace -ff --trace=file"),
        *("gdb -ex run --args", "gdb -batch -ex run -ex bt --args", "valgrind --leak-check=full"),
        *("nsys profile -o out --trace=cuda", "nsys profile -t cuda,nvtx -y 5", "ncu --set full -o out"),
        *(
            "perf record -F 99 -g",
            "py-spy record -o out.svg --",
            "ddprof -S service",
            "rocprofv3 --hip-trace --",
        ),
        *("tini -g --", "tini -p SIGTERM --", "dumb-init --rewrite 15:2", "prlimit --nofile=65536"),
        *("compute-sanitizer --tool racecheck", "ddtrace-run", "opentelemetry-instrument --service_name a"),
        *("uv run", "uv run --with numpy --no-sync", "uv run --", "poetry run", "pdm run", "pixi run -e gpu"),
        *("conda run -n env --no-capture-output", "conda run --live-stream -p /env", "micromamba run -n env"),
        *("singularity exec --nv -B /data image.sif", "apptainer exec --rocm docker://pytorch"),
        *("nohup nice -n 5 env A=1 numactl -N 0", "timeout 1h uv run --frozen", "env A=1 time"),
        *(
            "env - A=1",
            "env -i -- A=1",
            "env -iu A",
            "strace -ffo out",
            "perf record -go out",
            "uv run -qp 3.12",
            "taskset -ac 0",
        ),
        *(
            "uv --project x run",
            "uv -q run",
            "poetry -C x run",
            "hatch -e gpu run",
            "singularity -q exec a.sif",
        ),
        *(
            "uv run --with-requirements r.txt --only-group dev",
            "uvx --from torch",
            "uv tool run",
            "dotenv -f e run",
        ),
        *("nsys profile -f true --capture-range-end stop", "nsys profile --gpu-metrics-devices all"),
        *("ncu --target-processes all --replay-mode application", "micromamba run -a stdout -n env"),
        *("apptainer run --nv image.sif", "lldb --", "cuda-gdb --args", "vtune -collect hotspots --"),
        *("setarch x86_64 -R", "setarch -R", "gosu user", "rr record", "heaptrack", "doppler run --"),
    ],
)
def test_what_is_behind_a_front_is_found(front: str) -> None:
    """A Python and its script; a launcher, too."""
    assert behind(f"{front} python3 train.py --x 1") == SCRIPT
    assert behind(f"{front} {RUN}") == RUN
    words = tuple(f"{front} {RUN}".split())
    own = read_request(plan_argv(words, Options(), ENVIRON), Options(), ENVIRON).own
    assert own is not None and own.name == "torchrun"
    assert (words[own.head - 1], words[own.inner]) == ("torchrun", "train.py")


@pytest.mark.parametrize(
    "front",
    [
        *("python -m cProfile", "python3 -m cProfile -o out.prof -s cumtime", "python -u -m pdb -c continue"),
        *(
            "python -m trace --trace",
            "python -mtrace --count",
            "python -m debugpy --listen 5678 --wait-for-client",
        ),
        *(
            "python -m coverage run --source pkg",
            "coverage run -p",
            "coverage run --rcfile=x",
            "kernprof -l -v",
        ),
        *("pyinstrument -o out.html -r html", "python -m pyinstrument", "python -m ipdb -c continue"),
        *("memray run -o out.bin", "viztracer -o out.json", "python -m viztracer --", "scalene --cpu"),
        *("nice python -m cProfile", "uv run coverage run", "env A=1 uv run python -m cProfile"),
        *(
            "kernprof -lvo out",
            "memray run -fo out.bin",
            "scalene run",
            "python -m memory_profiler",
            "ipython --",
        ),
        *("python /env/bin/coverage run -p", "python -u coverage run", "nice python3 bin/kernprof -l"),
    ],
)
def test_a_front_that_runs_the_script_itself_is_its_python(front: str) -> None:
    """The script is read as one of the front's Python; the line stays as it is."""
    words = tuple(f"{front} train.py --x 1".split())
    assert behind(f"{front} train.py --x 1") == SCRIPT
    assert "python" in look_behind(words, ENVIRON)[0]
    assert behind(f"{front} -m pkg.train").endswith(" -m pkg.train")
    planned = plan_argv(words, Options(), ENVIRON)
    assert [word for word in planned if word.endswith(".py")] == ["train.py"]
    assert len(planned) in (len(words), len(words) + 1)  # -mtrace: two words


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nice train.py", "nice /py train.py"),
        ("env A=1 train.py x", "env A=1 /py train.py x"),
        ("nice -m pkg", "nice -m pkg"),
        ("timeout 5 -m pkg", "timeout 5 -m pkg"),
        ("-m cProfile train.py", "/py -m cProfile train.py"),
        ("-m coverage run -m pkg", "/py -m coverage run -m pkg"),
        ("uv run train.py", "uv run train.py"),
        ("uv run pytest train.py", "uv run pytest train.py"),
    ],
)
def test_a_script_behind_a_program_gets_its_python(line: str, expected: str) -> None:
    words = plan_argv(tuple(line.split()), Options(), ENVIRON)
    assert ["/py" if "python" in word else word for word in words] == expected.split()


@pytest.mark.parametrize("line", ["python env train.py", "python ./time train.py"])
def test_a_script_is_no_front_by_its_name(line: str) -> None:
    assert find_front(tuple(line.split())).count == 0


@pytest.mark.parametrize("flag", ["-m", "--module"])
def test_a_module_that_uv_runs_is_found(flag: str) -> None:
    words = ("uv", "run", "--frozen", flag, "torch.distributed.run", "--nnodes", "1", "train.py")
    assert plan_argv(words, Options(), ENVIRON) == words
    own = read_request(words, Options(), ENVIRON).own
    assert own is not None and own.name == "torchrun"
    assert (words[own.head - 1], words[own.inner]) == ("torch.distributed.run", "train.py")


@pytest.mark.parametrize(
    "line", ["env", "env A=1", "nice -n 5", "timeout 5", "gdb --args", "true", "uv run", "time"]
)
def test_a_front_without_a_command_is_the_command(line: str) -> None:
    assert find_front(tuple(line.split())).count == 0


@pytest.mark.parametrize(
    "line",
    [
        *(f"myprof {RUN}", "myprof -x=1 /bin/mpirun -n 2 a", f"nice myprof --a b {RUN}"),
        *("myprof python -m torch.distributed.run x.py", "myprof python3 -u /bin/torchrun x.py"),
        *(f"myprof -E {RUN}", f"myprof -- {RUN}"),
    ],
)
def test_a_launcher_behind_an_unknown_program_is_refused(line: str) -> None:
    """With both ways out."""
    with pytest.raises(UsageError) as found:
        read_request(tuple(line.split()), Options(), ENVIRON)
    (problem,) = found.value.problems
    assert problem.code == "unknown-front" and "'myprof'" in problem.what
    assert "launcher run -- " in problem.fix and "--engine process -- " in problem.fix


def test_both_ways_out_can_be_typed() -> None:
    """No dots in them; a program such as sudo or docker runs in front of the launcher."""
    with pytest.raises(UsageError) as found:
        read_request(("sudo", "-E", "torchrun", "my train.py"), Options(), ENVIRON)
    behind, _, as_it_is = found.value.problems[0].fix.partition("; or run ")
    assert behind == "put the launcher after it: sudo -E launcher run -- torchrun 'my train.py'"
    assert as_it_is.endswith(": launcher run --engine process -- sudo -E torchrun 'my train.py'")


@pytest.mark.parametrize(
    "front", ["nice -n 5 myprof -x", "nsys profile -o out --of-a-new-version all", "uv run --newest pkg"]
)
def test_the_ways_out_keep_the_fronts_before_it(front: str) -> None:
    """Also if a flag is newer than the table, so that its value looks like a program."""
    with pytest.raises(UsageError) as found:
        read_request(tuple(f"{front} {RUN}".split()), Options(), ENVIRON)
    fix = found.value.problems[0].fix
    assert f": {front} launcher run -- {RUN};" in fix and fix.endswith(f" -- {front} {RUN}")


@pytest.mark.parametrize("line", [f"A=1 {RUN}", f"nice A=1 B=2 {RUN}"])
def test_an_assignment_is_no_program_that_starts_a_launcher(line: str) -> None:
    """No program has that name: the launcher says so, with `env A=1`."""
    assert read_request(tuple(line.split()), Options(), ENVIRON).own is None


@pytest.mark.parametrize("text", ["python -u train.py", "A=1 torchrun train.py"])
@pytest.mark.parametrize("flag", ["-S", "-vS", "--split-string"])
def test_words_that_env_splits_stay_as_they_are(flag: str, text: str) -> None:
    line = ("env", flag, text)
    assert plan_argv(line, Options(), ENVIRON) == line


def test_an_environment_of_hatch_is_part_of_no_name() -> None:
    own = read_request(("hatch", "run", "gpu:torchrun", "train.py"), Options(), ENVIRON).own
    assert own is not None and (own.name, own.head, own.inner) == ("torchrun", 3, 3)


@pytest.mark.parametrize(
    "line", ["python train.py torchrun x", "bash run.sh torchrun x", "./train --by torchrun x.py"]
)
def test_a_launchers_name_as_an_argument_is_none(line: str) -> None:
    assert read_request(tuple(line.split()), Options(), ENVIRON).own is None


def test_a_long_command_line_takes_linear_time() -> None:
    """An unknown program with 200,000 words: in a quarter of a second, where copies of them took minutes."""
    begun = time.process_time()
    assert read_request(("./train", *["word"] * 200_000), Options(), ENVIRON).own is None
    assert time.process_time() - begun < 2.0


@pytest.mark.parametrize("line", ["torchrun -=x train.py", "accelerate launch -= train.py", "mpirun -=1 a"])
def test_a_flag_without_a_name_is_left_to_the_launcher(line: str) -> None:
    own = read_request(tuple(line.split()), Options(), ENVIRON).own
    assert own is not None and line.endswith(line.split()[own.inner])


def test_each_row_of_the_table_is_one() -> None:
    """No name twice, each flag with its dashes."""
    rows = [row for rows in read_fronts().values() for row in rows]
    assert len({row.words for row in rows}) == len(rows) > 50
    assert all(flag.startswith("-") for row in rows for flag in row.valued)
    assert {row.kind for row in rows} == {"", "script", "project", "elsewhere"}


@pytest.mark.parametrize(
    "line", ["pip install deepspeed accelerate numpy", "which torchrun mpirun", "man mpirun 1"]
)
def test_a_launchers_name_is_not_always_a_call(line: str) -> None:
    assert read_request(tuple(line.split()), Options(), ENVIRON).own is None


@pytest.mark.parametrize(
    "flag", ["-mtorch.distributed.run", "-m torch.distributed.run", "-um torch.distributed.run"]
)
def test_a_module_behind_a_front_is_found_where_it_is(flag: str) -> None:
    planned = plan_argv(tuple(f"nice python {flag} --nnodes 1 train.py".split()), Options(), ENVIRON)
    own = read_request(planned, Options(), ENVIRON).own
    assert own is not None and own.name == "torchrun"
    assert (planned[own.head], planned[own.inner]) == ("--nnodes", "train.py")


@pytest.mark.parametrize(
    "line",
    [
        "env -C /app python train.py",
        "apptainer exec a.sif python /opt/train.py",
        "uv run --directory x python train.py",
    ],
)
def test_a_script_that_only_the_front_can_see_is_not_missing(line: str) -> None:
    """In another directory, or in a container: the front itself says what is not there."""
    assert plan_job(ENVIRON, Host("/nonexistent"), Options(), tuple(line.split())).missing == ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        *[
            (line, True)
            for line in ("python", "python -", "python -u -", "python /dev/stdin", "sh", "bash -s a b")
        ],
        *[(line, True) for line in ("bash -e", "bash -", "sh -x -s", "bash -o pipefail", "bash /dev/stdin")],
        *[(line, True) for line in ("python /dev/fd/0", "python -u /proc/self/fd/0", "sh /dev/fd/0")],
        *[
            (line, False)
            for line in ("python a.py", "python -c pass", "python -m a", "python -V", "python --help")
        ],
        *[
            (line, False)
            for line in ("bash run.sh", "bash -x run.sh", "bash -eu -o pipefail run.sh", "sh +x run.sh")
        ],
        *[
            (line, False)
            for line in ("sh -c true", "bash -ec true", "bash --norc run.sh", "./train", "bash --version")
        ],
    ],
)
def test_which_programs_come_from_standard_input(line: str, expected: bool) -> None:
    assert reads_program(tuple(line.split())) is expected


@pytest.mark.parametrize(
    ("line", "python"),
    [
        ("numactl -N 0 /env/python train.py", "/env/python"),
        ("nice /env/python -m cProfile train.py", "/env/python"),
        ("apptainer exec a.sif python train.py", ""),
        ("singularity exec a.sif nice python train.py", ""),
        ("nice ./train", ""),
    ],
)
def test_a_flight_recorder_is_for_a_python_that_sees_our_files(line: str, python: str) -> None:
    assert find_python(line.split()) == python
