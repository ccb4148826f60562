"""Whether a Ray cluster is still there: its head, and this machine's part of it.

When either is gone Ray ends the process that uses it, after a minute or at the next call, with neither an exception nor
a word of ours. So we look ourselves, by connecting to where they listen, and stop using Ray when nobody answers.
"""

import socket
import time
from typing import Any

from armillary.errors import ArmillaryError

WITHIN = 30.0
"""Seconds in which a cluster that does not answer may come back."""


class Lifeline:
    """The places where a connected cluster listens, as far as they can be reached from here."""

    def __init__(self, ray: Any) -> None:
        host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
        places: list[Any] = [(host.strip("[]"), int(port)), _raylet_socket()]
        self._places = [place for place in places if place is not None and _answers(place)]
        self.cut = False
        """Whether the cluster was found to be gone; Ray must not be called any more but to shut down."""

    def check(self) -> None:
        """Raise if a place has not answered for WITHIN seconds."""
        end = time.monotonic() + WITHIN
        while not all(map(_answers, self._places)):
            if time.monotonic() > end:
                self.cut = True
                raise ArmillaryError(
                    f"the Ray cluster has not answered for {WITHIN:.0f} seconds: start it again; what was finished is "
                    "kept: --resume goes on"
                )
            time.sleep(1)


def _answers(place: "tuple[str, int] | str") -> bool:
    """Whether something listens there; a process that is merely busy does."""
    try:
        if isinstance(place, tuple):
            socket.create_connection(place, timeout=5).close()
            return True
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(place)
    except OSError:
        return False
    return True


def _raylet_socket() -> str | None:
    """Where this machine's part of the cluster listens, if it does here (a remote client has none)."""
    from ray._private import worker

    node = getattr(worker, "_global_node", None)
    return getattr(node, "raylet_socket_name", None)
