"""Silences the progress bars and warnings of transformers, unless the user turned them on."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Imports inside functions: transformers takes seconds to import.

VERBOSE = "ARMILLARY_VERBOSE"
"""If this environment variable is set (`armillary -v` sets it), transformers is not silenced."""


@contextmanager
def quiet(always: bool = False) -> Iterator[None]:
    """transformers reports only errors inside; afterward the user's settings are restored.

    If the user made transformers more verbose (`logging.set_verbosity_info()`), nothing changes. Download bars stay.
    `always` is for internal uses of transformers.
    """
    from transformers.utils import logging

    before = logging.get_verbosity()
    if not always and (os.environ.get(VERBOSE) or before < logging.WARNING):
        yield
        return
    logging.set_verbosity(max(before, logging.ERROR))
    restore_bars = _without_bars(logging)
    try:
        yield
    finally:
        logging.set_verbosity(before)
        restore_bars()


def _without_bars(logging: Any) -> Callable[[], None]:
    """Stop transformers' own bars, and return what brings them back.

    The hook exists since transformers 5.4. Before, there is a switch; `disable_progress_bar` would turn off download
    bars with it, so the switch is set itself.
    """
    if hasattr(logging, "set_tqdm_hook"):
        hook = logging.set_tqdm_hook(_no_bar)
        return lambda: logging.set_tqdm_hook(hook)
    active = logging._tqdm_active
    logging._tqdm_active = False
    return lambda: setattr(logging, "_tqdm_active", active)


def _no_bar(factory: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return factory(*args, **{**options, "disable": True})
