"""What the stream `tokens` costs: processor time of whole scans with and without it, interleaved.

python bench/tokens.py MODEL [REPEATS]
"""

import statistics
import sys
import time
from typing import Any

import armillary as arm
from armillary.streams.registry import DEFAULT_STREAMS


def seconds(model: Any, tokenizer: Any, streams: tuple[str, ...]) -> float:
    """Processor seconds of one scan with the default text and sizes."""
    start = time.process_time()
    arm.scan(model, "builtin:prose", tokenizer=tokenizer, streams=streams)
    return time.process_time() - start


def main(name: str, repeats: int) -> None:
    from armillary.anatomy.loading import tokenizer_of

    model, tokenizer = arm.load(name), tokenizer_of(name, {})
    without = tuple(stream for stream in DEFAULT_STREAMS if stream != "tokens")
    seconds(model, tokenizer, DEFAULT_STREAMS)  # compiles
    pairs = [(seconds(model, tokenizer, DEFAULT_STREAMS), seconds(model, tokenizer, without)) for _ in range(repeats)]
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"{name}: {ratio:.3f} x the scan without tokens ({pairs})")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
