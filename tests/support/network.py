"""Proof that nothing but this machine was asked for."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Stop = Callable[[], None]


def refuse_network(note: Callable[[str], object]) -> Stop:
    """From now on, connections and look-ups beyond loopback fail, and ``note`` is told of each.

    It sees what Python's own sockets do, of every thread. The function returned ends it.
    """
    active = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if not active or event not in ("socket.connect", "socket.getaddrinfo"):
            return
        target = arguments[1] if event == "socket.connect" else arguments[0]
        host = target[0] if isinstance(target, tuple) else target
        if event == "socket.connect" and not isinstance(target, tuple):
            return  # a path: a unix socket
        if not _is_here(host):
            note(f"{event} {host!r}")
            raise PermissionError(f"the tests use no network, but {host!r} was asked for")

    def stop() -> None:
        nonlocal active
        active = False

    sys.addaudithook(hook)  # for the life of the process: nothing takes a hook off again
    return stop


@contextmanager
def no_network() -> Iterator[None]:
    """Fails at its end when anything beyond loopback was asked for."""
    asked: list[str] = []
    stop = refuse_network(asked.append)
    try:
        yield
    finally:
        stop()
    assert not asked, f"not only this machine was asked for: {asked}"


def _is_here(host: object) -> bool:
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if host in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return False
