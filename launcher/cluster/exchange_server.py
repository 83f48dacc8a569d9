"""The first launcher's side of an exchange of addresses: who comes in, and who is turned away."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import time

from launcher.cluster.exchange_messages import is_proven, parse_word, render_line, say_problem
from launcher.core.errors import NotReady

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from launcher.core.model import Meeting

WORD_BYTES = 1 << 10
"""More than who comes can have to say."""
WORD_S = 5.0
"""How long whoever comes may take to say who it is."""
GUESTS = 256
"""At most so many are listened to who have not said it yet; one more, and the first of them must go."""
RETRY_S = 0.2


class Guest:
    """One connection: who it is from, as far as that has been said.

    Attributes:
        until: When its word must be there.
        challenge: What it is to show that it knows the token for.
        asks: What we are to show it for.
        node: The node it says it is on; -1 before.
        gone: We have parted.
    """

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.socket, self.address = connection, address
        self.text = b""
        self.until = time.monotonic() + WORD_S
        self.challenge, self.asks = os.urandom(16).hex(), ""
        self.node = -1
        self.gone = False


class Door:
    """Where the launchers come in: all are listened to at once, so that a slow stranger holds up nobody.

    Attributes:
        came: Those who have said who they are, and are still there.
        odd: Which of them came from two places, or who came without the token, in words.
    """

    def __init__(self, server: socket.socket, meeting: Meeting, key: bytes = b"") -> None:
        self.server, self.meeting, self.key = server, meeting, key
        self.came: dict[int, Guest] = {}
        self.odd = ""
        self.strangers: list[Guest] = []
        self.selector = selectors.DefaultSelector()
        self.selector.register(server, selectors.EVENT_READ)

    def wait(self) -> None:
        """Wait a moment, and hear who comes, speaks or goes meanwhile."""
        for key, _ in self.selector.select(RETRY_S):
            if key.data is None:
                self._admit()
            elif not key.data.gone:
                self._hear(key.data)
        now = time.monotonic()
        for guest in [guest for guest in self.strangers if guest.until <= now]:
            self._dismiss(guest)

    def close(self) -> None:
        """Part from all."""
        self.selector.close()
        for guest in (*self.strangers, *self.came.values()):
            guest.socket.close()

    def _admit(self) -> None:
        try:
            connection, (address, *_) = self.server.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                what = f"{len(self.came)} launchers came, and no more can be heard ({error.strerror})"
                raise NotReady(say_problem(self.meeting, what)) from error
            return  # it has gone before we looked
        if len(self.strangers) >= GUESTS:
            self._dismiss(self.strangers[0])
        connection.setblocking(False)
        guest = Guest(connection, address.removeprefix("::ffff:"))
        self.strangers.append(guest)
        self.selector.register(connection, selectors.EVENT_READ, guest)
        if self.key:
            with contextlib.suppress(OSError):  # it has gone: that will be heard
                connection.send(render_line({"challenge": guest.challenge}))

    def _hear(self, guest: Guest) -> None:
        try:
            more = guest.socket.recv(WORD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        guest.text += more
        complete = guest.text.endswith(b"\n")
        word = parse_word(guest.text, self.meeting) if complete and guest.node < 0 else None
        if word is not None and self._believe(guest, *word):
            self._welcome(guest, *word)
        elif not more or complete or len(guest.text) > WORD_BYTES:
            self._dismiss(guest)

    def _believe(self, guest: Guest, member: int, node: int) -> bool:
        """Whether a launcher knows the token, if the job has one."""
        if not self.key:
            return True
        word = json.loads(guest.text)
        guest.asks = str(word.get("challenge"))
        if is_proven(self.key, guest.challenge, [member, node, guest.asks], word.get("proof")):
            return True
        self.odd = f"; {guest.address} came without the job's token"
        return False

    def _welcome(self, guest: Guest, member: int, node: int) -> None:
        before = self.came.get(member)
        if before is not None:
            if before.address != guest.address:
                self.odd = f"; launcher {member} came from {before.address} and from {guest.address}"
            self._dismiss(before)
        guest.node = node
        self.strangers.remove(guest)
        self.came[member] = guest

    def _dismiss(self, guest: Guest) -> None:
        guest.gone = True
        self.selector.unregister(guest.socket)
        guest.socket.close()
        self.strangers = [other for other in self.strangers if other is not guest]
        self.came = {member: other for member, other in self.came.items() if other is not guest}
