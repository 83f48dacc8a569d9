"""Messages of programs on other nodes: node 0's launcher, the other nodes, and the clients on node 0.

Data of streams is base64: frames are JSON.
"""

from __future__ import annotations

from base64 import b64decode, b64encode

from launcher.core.wire import Garbled, message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.wire import Line, Raw, Status

LOST_AFTER_S = 15.0
"""Seconds for which a link may be down: then its connection, with the streams, is lost."""
UNSENT_LIMIT_BYTES = 1 << 26
"""Data that a node does not take; each program has `WINDOW_BYTES` on the way at most."""
NOT_REACHED = 255
"""Status of a program whose node is not there, as ssh has it."""
CHUNK_BYTES = 1 << 15
"""Data of one message: with its encoding it fits into a frame."""
WINDOW_BYTES = 1 << 18
"""Data of a program's input, or of its outputs, that may be on its way before the other end has taken it."""


def encode_data(data: bytes) -> str:
    """Return the data of a stream as text for a message."""
    return b64encode(data).decode("ascii")


def decode_data(text: str) -> bytes:
    """Return the data of a stream in a message.

    Raises:
        Garbled: It is not base64.
    """
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise Garbled("data that is not base64") from None


# --- from node 0 to another node


@message
class RunProgram:
    """Start a program.

    Attributes:
        number: Number by which both sides call it.
        line: Its command line, for a shell.
    """

    number: int
    line: Raw


@message
class EndProgram:
    """The program's client is gone: close its streams."""

    number: int


# --- in both directions, and between node 0 and a client, for which the number is 0


@message
class StreamData:
    """Data of a program's standard input (0), output (1) or error (2); without data its end."""

    number: int
    stream: int
    data: Raw = ""


@message
class StreamTaken:
    """So many bytes of a program's input (0), or of its outputs (1), are taken: as many more may come."""

    number: int
    stream: int
    size: int


@message
class ProgramEnded:
    """A program has ended, or could not run; then there is a reason."""

    number: int
    status: Status
    why: Line = ""


# --- between node 0 and a client


@message
class AskProgram:
    """A client wants to run a program on a host."""

    host: Raw
    line: Raw


@message
class RunHere:
    """The host is this node: the client runs the program itself."""


@message
class RunThere:
    """The program starts on another node, which takes its standard input."""


FROM_NODE = (StreamData, StreamTaken, ProgramEnded)
TO_NODE = (RunProgram, EndProgram, StreamData, StreamTaken)
FROM_CLIENT = (StreamData, StreamTaken)
TO_CLIENT = (StreamData, StreamTaken, ProgramEnded, RunHere, RunThere)
