"""Checks that a Ray cluster is still running: its head, and its node on this machine.

If either is gone, Ray ends the process that uses it, after a minute or at the next call, without an exception. So we
check ourselves, by connecting to their sockets, and stop using Ray if they do not answer.
"""

import socket
import time
from typing import Any

from armillary.errors import ArmillaryError

# Imports inside functions: ray is an optional package.

WITHIN = 30.0
"""A cluster that has not answered for this many seconds counts as gone."""


class Lifeline:
    """The addresses at which a connected cluster listens, as far as they can be reached from here."""

    def __init__(self, ray: Any) -> None:
        host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
        addresses: list[Any] = [(host.strip("[]"), int(port)), _raylet_socket()]
        self._addresses = [address for address in addresses if address is not None and _answers(address)]
        self.cut = False
        """Whether the cluster is gone; then the only Ray call allowed is shutdown."""

    def check(self) -> None:
        """Raise if an address has not answered for WITHIN seconds."""
        end = time.monotonic() + WITHIN
        while not all(map(_answers, self._addresses)):
            if time.monotonic() > end:
                self.cut = True
                raise ArmillaryError(
                    f"the Ray cluster has not answered for {WITHIN:.0f} seconds; finished work is kept",
                    advice="start the cluster again, then continue with `resume=True`",
                )
            time.sleep(1)


def _answers(address: "tuple[str, int] | str") -> bool:
    """Whether something listens at the address (a busy process does)."""
    try:
        if isinstance(address, tuple):
            socket.create_connection(address, timeout=5).close()
            return True
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(address)
    except OSError:
        return False
    return True


def _raylet_socket() -> str | None:
    """The socket of the cluster's node on this machine (a remote client has none)."""
    from ray._private import worker

    node = getattr(worker, "_global_node", None)
    return getattr(node, "raylet_socket_name", None)
