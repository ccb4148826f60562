"""Where the work of a scan is done: in this process, in several, or on a Ray cluster."""

from collections.abc import Iterator
from contextlib import contextmanager

from armillary.engines.engine import Engine, refuse_idle
from armillary.errors import ArmillaryError

ENGINES = ("local", "ray")


@contextmanager
def opened(
    engine: str | Engine, workers: int = 1, threads: int | None = None, address: str | None = None
) -> Iterator[Engine]:
    """The engine of that name, closed at the end; an engine that was given goes on with its workers."""
    if not isinstance(engine, str):
        yield engine
        return
    made = _made(engine, workers, threads, address)
    try:
        yield made
    finally:
        made.close()


def _made(engine: str, workers: int, threads: int | None, address: str | None) -> Engine:
    if engine not in ENGINES:
        raise ArmillaryError(f"there is no engine {engine!r}: there are {', '.join(ENGINES)}")
    if address is not None and engine != "ray":
        raise ArmillaryError(f"--address {address} is that of a Ray cluster: add --engine ray")
    refuse_idle(workers, threads)
    if engine == "ray":
        from armillary.engines.ray import Ray

        return Ray(workers, threads or 1, address)
    if workers == 1 and threads is None:
        from armillary.engines.inside import Inside

        return Inside()
    from armillary.engines.local import Local

    return Local(workers, threads or 1)
