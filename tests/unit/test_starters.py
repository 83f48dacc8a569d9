"""What the programs that start others say of their children, and exceptions whose traceback is lost."""

from __future__ import annotations

import pytest

from launcher.failure.causes import find_causes
from launcher.failure.stderr import read_last_output
from tests.unit.test_causes import EMPTY_HOST, UNKNOWN, codes, death, raised

TOLD = {
    "mpirun noticed that process rank 1 with PID 71 on node n1 exited on signal 9 (Killed).": "killed",
    "prterun noticed that process rank 1 with PID 71 on node n1 exited on signal 11 (Segmentation fault).": (
        "segmentation-fault"
    ),
    "=   KILLED BY SIGNAL: 9 (Killed)": "killed",
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)": "segmentation-fault",
    "srun: error: n1: task 3: Killed": "killed",
    "srun: error: n1: tasks 0-3: Segmentation fault (core dumped)": "segmentation-fault",
    "run.sh: line 3:  4711 Killed                  python train.py": "killed",
    "run.sh: line 3:  4711 Illegal instruction     (core dumped) python train.py": "illegal-instruction",
    "zsh: segmentation fault  python train.py": "segmentation-fault",
    "zsh: illegal hardware instruction  python train.py": "illegal-instruction",
    "*** SIGSEGV received at time=1711 on cpu 3 ***": "segmentation-fault",
    "  traceback : Signal 9 (SIGKILL) received by PID 77": "killed",
    "[2024-04-19 08:11:26,402] [ERROR] [launch.py:322:sigkill_handler] exits with return code = -9": "killed",
}


@pytest.mark.parametrize("line", TOLD)
def test_the_signal_that_a_starter_names_is_the_cause(line: str) -> None:
    """Its own status is 1, or the signal's; the line is quoted."""
    (cause,) = find_causes(death(1, f"epoch 3\n{line}\n"), UNKNOWN, EMPTY_HOST)
    assert cause.code == TOLD[line]
    assert cause.what.endswith(" ".join(line.split()))


@pytest.mark.parametrize(
    "line",
    [
        "mpirun noticed that process rank 0 exited on signal 15 (Terminated).",
        "the node was Killed in 3 of 4 tests",
        "received signals: 3",
    ],
)
def test_other_words_of_signals_are_none(line: str) -> None:
    """A starter sends SIGTERM to what still runs; other text is the program's own."""
    assert set(codes(find_causes(death(1, f"{line}\n"), UNKNOWN, EMPTY_HOST))) <= {"program-message"}


@pytest.mark.parametrize("code", [-9, 137, -11])
def test_a_warning_does_not_explain_a_signal(code: int) -> None:
    """Only what a process writes when it dies does, or an exception."""
    warned = "W0000 Could not load library libnvinfer.so.8: No such file or directory\nepoch 3\n"
    expected = "segmentation-fault" if code == -11 else "killed"
    assert codes(find_causes(death(code, warned), UNKNOWN, EMPTY_HOST)) == [expected]
    oom = "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n"
    assert codes(find_causes(death(-9, warned + oom), UNKNOWN, EMPTY_HOST)) == ["out-of-memory"]


@pytest.mark.parametrize(
    "prefix",
    [
        *("", "[rank3]: ", "[1,3]<stderr>:", "2025-01-30 18:11:28,123 ERROR "),
        *("[2025-01-30 18:11:28] [ERROR] ", "E0409 07:28:49.530000 1359 train.py:7] "),
        *("(RayTrainWorker pid=71, ip=10.0.0.4) ", "2025-01-30 18:11:28 | ERROR    | "),
    ],
)
def test_an_exception_whose_traceback_is_lost_is_read(prefix: str) -> None:
    """Behind a time, a level, a process; what stands before it explains nothing."""
    last = "RuntimeError: shape '[3, 4]' is invalid for input of size 10"
    text = f"wandb: Connection refused, retrying\n{prefix}{last}\n"
    assert codes(find_causes(death(1, text), UNKNOWN, EMPTY_HOST)) == ["shape-mismatch"]
    assert read_last_output(text.encode(), None).exception == last


@pytest.mark.parametrize(
    "line",
    [
        "WARNING retrying after ConnectionError: refused",
        "2025-01-30 18:11:28 WARNING ConnectionError: refused",
        "    raise ValueError: no",
        "caught ValueError: no, going on",
        "ErrorCount: 3",
    ],
)
def test_a_line_about_an_exception_is_none(line: str) -> None:
    """Only a line that is one counts."""
    assert read_last_output(f"{line}\nepoch 4\n".encode(), None).exception == ""


def test_an_exception_comes_before_what_follows_from_it() -> None:
    """mpirun's signals, and the CalledProcessError of a starter."""
    # mpirun kills the others with a signal after one has raised an exception.
    text = raised("ValueError: no") + "mpirun noticed that process rank 1 exited on signal 9 (Killed).\n"
    assert codes(find_causes(death(1, text), UNKNOWN, EMPTY_HOST)) == ["python-exception"]
    # accelerate and others raise CalledProcessError below the traceback of their child.
    theirs = raised(
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1."
    )
    text = raised("RuntimeError: CUDA error: out of memory") + theirs
    assert codes(find_causes(death(1, text), UNKNOWN, EMPTY_HOST)) == ["cuda-out-of-memory"]
    assert codes(find_causes(death(1, theirs), UNKNOWN, EMPTY_HOST)) == ["python-exception"]


AGENT = (
    "E1125 02:48:37 1359 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: {code}) "
    "local_rank: 1 (pid: 77) of binary: /usr/bin/python\n"
) + raised("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")


def test_a_torchrun_inside_of_a_script_is_read_like_ours() -> None:
    """The report of its agent gives the status, the text above it the reason."""
    text = raised("ValueError: no") + AGENT.format(code=1)
    (cause,) = find_causes(death(1, text), UNKNOWN, EMPTY_HOST)
    assert (cause.code, cause.what) == ("python-exception", "ValueError: no")
    text = "epoch 1\n" + AGENT.format(code=-9)
    assert codes(find_causes(death(1, text), UNKNOWN, EMPTY_HOST)) == ["killed"]


LOST = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5333."


def test_of_several_ranks_the_one_that_has_not_only_lost_a_peer_counts() -> None:
    """However their lines are mixed."""

    def of(rank: int, message: str) -> list[str]:
        return [f"[rank{rank}]: {line}" for line in raised(message).splitlines()]

    mixed = [line for both in zip(of(1, "ValueError: no"), of(0, LOST), strict=True) for line in both]
    for lines in (mixed, of(1, "ValueError: no") + of(0, LOST)):
        (cause,) = find_causes(death(1, "\n".join(lines)), UNKNOWN, EMPTY_HOST)
        assert (cause.code, cause.what) == ("python-exception", "ValueError: no")
    one = raised("ValueError: caught, and tried again") + raised(LOST)
    assert codes(find_causes(death(1, one), UNKNOWN, EMPTY_HOST)) == ["gloo-peer-lost"]


def test_a_message_with_blank_lines_is_read_to_its_end() -> None:
    """Keras, JAX and TensorFlow write such; text of another program below is no part of it."""
    text = raised("ValueError: Exception encountered when calling Dense.call().") + (
        "\nInput 0 of layer 'dense' is incompatible with the layer: expected axis -1 of input shape to have "
        "value 8\n"
    )
    assert codes(find_causes(death(1, text), UNKNOWN, EMPTY_HOST)) == ["shape-mismatch"]
