"""transformers without its progress bars and tables, unless the user asked for them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

VERBOSE = "ARMILLARY_VERBOSE"
"""Set in the environment (`armillary -v` does), transformers says all that it has to say."""


@contextmanager
def quiet(always: bool = False) -> Iterator[None]:
    """transformers reports errors only while this lasts; afterwards everything is as the user had set it.

    Who has set transformers to say more than by default (`logging.set_verbosity_info()`) is left alone. Bars of
    downloads stay. `always` is for what Armillary asks of transformers for itself.
    """
    from transformers.utils import logging

    before = logging.get_verbosity()
    if not always and (os.environ.get(VERBOSE) or before < logging.WARNING):
        yield
        return
    logging.set_verbosity(max(before, logging.ERROR))
    hook = logging.set_tqdm_hook(_no_bar)
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.set_tqdm_hook(hook)


def _no_bar(factory: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return factory(*args, **{**options, "disable": True})
