"""Rewrite Python arguments in the library's messages as command-line options."""

import re

ARGUMENT = re.compile(r"`([a-z_]+)=([^`]*)`|`([a-z_]+)`")

ALONE = frozenset({"out", "model", "part", "length", "shard", "port", "host", "workers", "batch", "tokenizer"})
"""Arguments that messages name without a value."""

SPECIAL = {"no_limits=True": "`armillary --no-limits ...`", "not_finite=allow": "--allow-not-finite"}


def as_options(sentence: str) -> str:
    """The sentence with `resume=True` as --resume, `length=600` as --length 600 and `out` as --out."""
    return ARGUMENT.sub(_option, sentence)


def _option(match: re.Match[str]) -> str:
    name, value, alone = match.groups()
    if alone is not None:
        return f"--{alone.replace('_', '-')}" if alone in ALONE else match.group(0)
    if f"{name}={value}" in SPECIAL:
        return SPECIAL[f"{name}={value}"]
    option = f"--{name.replace('_', '-')}"
    return option if value == "True" else f"{option} {value}"
