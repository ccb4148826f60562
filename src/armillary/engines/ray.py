"""The engine of a Ray cluster: workers are actors, on one machine or many (extra `ray`)."""

import logging
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any

from armillary.engines.engine import (
    PATIENCE,
    Advanced,
    Begun,
    Failed,
    Job,
    Lost,
    Ready,
    Report,
    Task,
    Worker,
    failure,
    refuse_here_only,
    refuse_unlike,
    sentence,
)
from armillary.engines.lifeline import Lifeline
from armillary.errors import ArmillaryError

# Imports inside functions: ray is an optional package; torch is imported by the worker.

STARTS = 3
"""After this many deaths of actors before they are ready, the engine gives up."""

DYING_FOR = 60.0
"""For this many seconds actors may die more often than that, since a lost machine takes several with it."""

START_WITHIN = 600.0
"""An actor must be ready within this many seconds: a cluster without room would make us wait forever."""

CHECK_EVERY = 5.0
"""Seconds between two checks of the cluster while no worker reports anything."""


DEATHS = {
    "ActorDiedError": "its process died",
    "ActorUnavailableError": "it cannot be reached",
    "NodeDiedError": "its machine is gone",
    "ObjectLostError": "its machine is gone",
    "OwnerDiedError": "its machine is gone",
    "ObjectFetchTimedOutError": "its machine cannot be reached",
    "GetTimeoutError": "its machine cannot be reached",
}
"""What to print for the errors that Ray raises when an actor or its machine is lost."""
GONE = set(DEATHS.values())


class Ray:
    """`workers` actors with `threads` threads each, spread over the cluster at `address` (None: a local one)."""

    def __init__(self, workers: int, threads: int = 1, address: str | None = None) -> None:
        self.workers = workers
        self.threads = threads
        self.address = address
        self._job: Job | None = None
        self._facts: Any = None
        self._shared: Any = None
        self._actors: list[_Actor] = []
        self._ray: Any = None
        self._lifeline: Lifeline | None = None
        self._starts = 0
        self._dying_since = 0.0

    def start(self, job: Job) -> Any:
        refuse_here_only(job)
        if self._ray is None:
            self._ray = connect(self.workers * self.threads, self.address)
            self._lifeline = Lifeline(self._ray)
        if self._job is None or self._job != job:
            self.drop()
            self._job, self._facts, self._shared = job, None, None
            for actor in self._actors:
                actor.ready, actor.events = False, actor.handle.open.remote(job)
        running = {actor.worker.number for actor in self._actors}
        self._actors += [self._start_actor(number) for number in range(self.workers) if number not in running]
        while self._facts is None:
            self.wait()
        return self._facts

    def _check_cluster(self) -> None:
        """Raise if the cluster is gone. Called before every Ray call, since Ray would silently end this process."""
        assert self._lifeline is not None
        self._lifeline.check()

    def share(self, data: bytes) -> None:
        self._check_cluster()
        self._shared = self._ray.put(data)
        for actor in self._actors:
            if actor.ready:
                actor.handle.share.remote(self._shared)

    @property
    def room(self) -> int:
        return sum(actor.ready and actor.ticket is None for actor in self._actors)

    def submit(self, ticket: int, task: Task) -> None:
        self._check_cluster()
        actor = next(actor for actor in self._actors if actor.ready and actor.ticket is None)
        actor.ticket, actor.events, actor.last_report = ticket, actor.handle.run.remote(ticket, task), time.monotonic()

    def wait(self) -> Report:
        """Wait for the next report; events of one task come in order."""
        actor = self._next_reporting()
        actor.last_report = time.monotonic()
        self._check_cluster()
        try:
            report: Report = self._ray.get(next(actor.events), timeout=PATIENCE)
        except Exception as error:
            return self._actor_died(actor, error)
        if isinstance(report.event, Ready):
            self._actor_ready(actor, report)
        elif report.ticket is None and isinstance(report.event, Failed):
            self._job = None
            raise ArmillaryError(report.event.message)
        if not isinstance(report.event, Advanced | Begun):
            actor.ticket = actor.events = None
        return report

    def _next_reporting(self) -> "_Actor":
        """The next actor that has a report; raises in bounded time if the cluster is gone.

        Ray prefers those that come first in the list, so the actor that reported last goes to its end: one that always
        has a report would else hide that another died.
        """
        since = time.monotonic()
        while True:
            in_turn = sorted(self._actors, key=lambda actor: actor.last_report)
            pending = {actor.events: actor for actor in in_turn if actor.events is not None}
            ready, _ = self._ray.wait(list(pending), num_returns=1, timeout=CHECK_EVERY, fetch_local=False)
            if ready:
                return pending[ready[0]]
            self._check_cluster()
            for actor in self._actors:
                if actor.ticket is not None and time.monotonic() - actor.last_report > PATIENCE:
                    self._ray.kill(actor.handle)  # its events then end with an error
            if time.monotonic() - since > START_WITHIN and not any(actor.ready for actor in self._actors):
                needed = f"{self.workers} workers with {self.threads} processors each"
                raise ArmillaryError(
                    f"the Ray cluster has had no room for {needed} in {START_WITHIN:.0f} seconds; finished "
                    "work is kept",
                    advice="use fewer, or check the machines, then continue with `resume=True`",
                )

    def _actor_ready(self, actor: "_Actor", report: Report) -> None:
        assert isinstance(report.event, Ready)
        assert self._job is not None
        if self._facts is None:
            self._facts = report.event.facts
        else:
            refuse_unlike(self._job, self._facts, report.event.facts, report.worker)
        actor.worker, actor.ready, self._starts = report.worker, True, 0
        if self._shared is not None:
            actor.handle.share.remote(self._shared)

    def _actor_died(self, actor: "_Actor", error: Exception) -> Report:
        """Replace an actor that is gone; Ray's long message becomes a phrase."""
        why = _why(error)
        self._check_cluster()
        if not actor.ready:
            self._starts += 1
            if self._starts == 1:
                self._dying_since = time.monotonic()
            excused = why in GONE and time.monotonic() - self._dying_since < DYING_FOR
            if self._starts >= STARTS and not excused:
                self.close()
                raise ArmillaryError(f"Ray workers die before they have loaded the model ({why})")
        self._ray.kill(actor.handle)
        self._actors[self._actors.index(actor)] = self._start_actor(actor.worker.number)
        return Report(actor.worker, actor.ticket, Lost(why))

    def _start_actor(self, number: int) -> "_Actor":
        ray = self._ray
        gpus_per_worker = int(ray.cluster_resources().get("GPU", 0)) // self.workers
        gpus = gpus_per_worker if getattr(self._job, "device_map", None) is not None else min(1, gpus_per_worker)
        actor_class = ray.remote(
            num_cpus=self.threads, num_gpus=gpus, max_restarts=0, scheduling_strategy="SPREAD", max_task_retries=0
        )(RayWorker)
        with _no_warnings():
            handle = actor_class.remote(number, self.workers, self.threads)
        return _Actor(handle, Worker(number, "ray", 0), handle.open.remote(self._job))

    @property
    def _gone(self) -> bool:
        return self._lifeline is not None and self._lifeline.cut

    def drop(self) -> None:
        if self._gone:
            return
        for actor in self._actors:
            if actor.ticket is not None:
                self._ray.kill(actor.handle)
        self._actors = [actor for actor in self._actors if actor.ticket is None]

    def _end_actors(self) -> None:
        for actor in self._actors if not self._gone else ():
            self._ray.kill(actor.handle)
        self._actors, self._job, self._facts, self._shared, self._starts = [], None, None, None, 0

    def close(self) -> None:
        if self._ray is not None:
            self._end_actors()
            with _no_warnings():
                self._ray.shutdown()
            self._ray = self._lifeline = None


class _Actor:
    def __init__(self, handle: Any, worker: Worker, events: Any) -> None:
        self.handle, self.worker, self.events = handle, worker, events
        self.ticket: int | None = None
        self.ready = False
        self.last_report = time.monotonic()


class RayWorker:
    """The worker that runs in an actor, like engines/worker.py. Its generators are streams of reports."""

    def __init__(self, number: int, workers: int, threads: int) -> None:
        self._number, self._workers, self._threads = number, workers, threads
        self._worker = Worker(number)
        self._bench: Any = None

    def open(self, job: Job) -> Iterator[Report]:
        try:
            import torch

            torch.set_num_threads(self._threads)
            visible = torch.cuda.device_count()
            self._bench = None  # two models may not fit
            self._bench = job.open(0 if visible == 1 else self._number, self._workers)
        except Exception as error:
            yield Report(self._worker, None, failure(error))
            return
        yield Report(self._worker, None, Ready(self._bench.facts))

    def share(self, data: bytes) -> None:
        self._bench.share(data)

    def run(self, ticket: int, task: Task) -> Iterator[Report]:
        try:
            for event in self._bench.run(task):
                yield Report(self._worker, ticket, event)
        except Exception as error:
            yield Report(self._worker, ticket, failure(error))


def connect(processors: int, address: str | None) -> Any:
    """Ray, connected to the cluster at `address` or to a new one on this machine, with usage statistics off."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # we report the death of a worker ourselves
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "300")  # then Ray would end us; we check earlier
    try:
        with _no_warnings():
            import ray
    except ImportError as error:
        raise ArmillaryError("the engine ray needs the package ray: pip install 'armillary[ray]'") from error
    logging.getLogger("ray").setLevel(logging.ERROR)
    if ray.is_initialized():
        raise ArmillaryError("this process already uses a Ray cluster: call ray.shutdown() first")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    # our own cluster gets one CPU per worker thread, whatever the machine has
    own: dict[str, Any] = {"include_dashboard": False, "num_cpus": processors} if address is None else {}
    try:
        with _no_warnings():
            ray.init(address=address or "local", **quiet, **own)
    except Exception as error:
        where = f"at {address}" if address else "on this machine"
        raise ArmillaryError(f"no Ray cluster could be reached {where}: {sentence(error)}") from error
    return ray


def _why(error: Exception) -> str:
    """A phrase for Ray's error, whose own message has many lines."""
    if "No module named 'armillary'" in str(error):
        return "armillary is not installed on a machine of the cluster"
    phrases = {
        **DEATHS,
        "OutOfMemoryError": "it had too little memory",
        "StopIteration": "it ended its task without a result",
    }
    return phrases.get(type(error).__name__, type(error).__name__)


class _no_warnings(warnings.catch_warnings):
    """Hides warnings that Ray addresses to its developers."""

    def __enter__(self) -> Any:
        caught = super().__enter__()
        warnings.simplefilter("ignore")
        return caught
