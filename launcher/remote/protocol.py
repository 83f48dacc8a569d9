"""Messages of programs on other nodes: node 0's launcher, the other nodes, and the clients on node 0.

Data of streams is base64: frames are JSON.
"""

from __future__ import annotations

from base64 import b64decode, b64encode

from launcher.core.wire import Garbled, message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.wire import Line, NodeRank, Raw, Status, Word

BEAT_S, LOST_S = 5.0, 20.0
"""Seconds between signs of life, and without any until the connection counts as lost; as with ssh before."""
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


# --- from another node to node 0


@message
class NodeHere:
    """A node joins.

    Attributes:
        node: Its host name.
        launcher: Version of its launcher.
        index: Its node rank; None if it does not know it.
        address: Its own address in the cluster, if it knows no rank.
        session: Random name that tells its launcher from a later one; None of an older version.
    """

    node: Line
    launcher: Line
    index: NodeRank | None = None
    address: Line = ""
    session: Word | None = None


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


@message
class NotAdmitted:
    """The node cannot join, for this reason."""

    why: Line


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


@message
class StillHere:
    """Sent every few seconds, so that the other side notices a lost connection."""


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


FROM_NODE = (NodeHere, StreamData, StreamTaken, ProgramEnded, StillHere)
TO_NODE = (RunProgram, EndProgram, StreamData, StreamTaken, NotAdmitted, StillHere)
FROM_CLIENT = (StreamData, StreamTaken)
TO_CLIENT = (StreamData, StreamTaken, ProgramEnded, RunHere, RunThere)
