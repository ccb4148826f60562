"""Many small pieces of work side by side, each on one core: more cores do not help a small piece, and cost it time."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """work(item) of every item, in their order, on as many cores as torch may use; few results wait to be taken."""
    threads = torch.get_num_threads()
    if threads == 1 or len(items) < 2:
        yield from map(work, items)
        return
    inference = torch.is_inference_mode_enabled()

    def alone(item: T) -> R:
        with torch.inference_mode(inference), torch.no_grad():  # each thread has its own modes
            return work(item)

    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            waiting: deque[Future[R]] = deque()
            try:
                for item in items:
                    waiting.append(pool.submit(alone, item))
                    if len(waiting) > 2 * threads:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for one in waiting:
                    one.cancel()
    finally:
        torch.set_num_threads(threads)
