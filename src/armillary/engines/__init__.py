"""Runs tasks in this process, in several processes, or on a Ray cluster."""

from collections.abc import Iterator
from contextlib import contextmanager

from armillary.engines.engine import Engine, refuse_idle
from armillary.engines.inside import Inside
from armillary.engines.local import Local
from armillary.engines.ray import Ray
from armillary.errors import ArmillaryError, unknown

ENGINES = ("local", "ray")


@contextmanager
def opened(
    engine: str | Engine, workers: int = 1, threads: int | None = None, address: str | None = None
) -> Iterator[Engine]:
    """The engine of that name, closed at the end; an engine object is used as it is and stays open."""
    if not isinstance(engine, str):
        yield engine
        return
    created = _created(engine, workers, threads, address)
    try:
        yield created
    finally:
        created.close()


def _created(engine: str, workers: int, threads: int | None, address: str | None) -> Engine:
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if address is not None and engine != "ray":
        raise ArmillaryError(
            f"`address={address}` is for a Ray cluster", advice="add `engine=ray`", given=address, expected="engine=ray"
        )
    refuse_idle(workers, threads)
    if engine == "ray":
        return Ray(workers, threads or 1, address)
    if workers == 1 and threads is None:
        return Inside()
    return Local(workers, threads or 1)
