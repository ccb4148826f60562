"""Runs many small pieces of work in parallel, each on one core: more cores would only slow a small piece down."""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """work(item) for every item, in order, on as many cores as torch may use; a bounded number of results waits."""
    threads = torch.get_num_threads()
    if threads == 1 or len(items) < 2:
        yield from map(work, items)
        return
    inference = torch.is_inference_mode_enabled()

    def on_one_core(item: T) -> R:
        with torch.inference_mode(inference), torch.no_grad():  # each thread has its own modes
            return work(item)

    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            waiting: deque[Future[R]] = deque()
            try:
                for item in items:
                    waiting.append(pool.submit(on_one_core, item))
                    if len(waiting) > 2 * threads:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
    finally:
        torch.set_num_threads(threads)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="armillary")


@cache
def _single_threaded(threads: int) -> ThreadPoolExecutor:
    """Threads in which torch uses one core. They are kept, so each sets this once."""
    started = Barrier(threads)

    def use_one_core() -> None:
        torch.get_num_threads()  # a thread takes torch's common number when it first asks, then it can have its own
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(threads, "armillary", use_one_core)
    for future in [pool.submit(int) for _ in range(threads)]:
        future.result()
    torch.set_num_threads(threads)  # the last number that any thread set is what new ones begin with
    return pool


def on_cores(work: Callable[[T], object], items: Sequence[T]) -> None:
    """work(item) for every item, on as many cores as torch may use, each item on one; in no order.

    For pieces of torch and compiled work together. Unlike around `in_spans`, torch's own threads have nothing to do
    meanwhile: after an operation they wait actively for the next one, on cores that our threads then lack.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(items) < 2:
        for item in items:
            work(item)
        return
    inference = torch.is_inference_mode_enabled()

    def without_gradients(item: T) -> None:
        with torch.inference_mode(inference), torch.no_grad():  # each thread has its own modes
            work(item)

    for future in [_single_threaded(threads).submit(without_gradients, item) for item in items]:
        future.result()


def in_spans(work: Callable[[int, int], object], count: int) -> None:
    """work(first, last) for spans that together make 0 .. count, one on each core that torch may use.

    For compiled work that releases the interpreter's lock. The threads are kept for the next call.
    """
    threads = min(torch.get_num_threads(), count)
    if threads < 2:
        work(0, count)
        return
    edges = [count * part // threads for part in range(threads + 1)]
    pool = _pool(threads)
    for future in [pool.submit(work, *span) for span in itertools.pairwise(edges)]:
        future.result()
