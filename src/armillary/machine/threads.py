"""Sets how threads of the numerical libraries wait, before the libraries are loaded.

By default a waiting thread spins for milliseconds after every small piece of work. On a busy machine, where the other
thread has no core, a command took up to fifteen times the processor time that it takes with one thread.
"""

from collections.abc import MutableMapping

POLICIES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    # torch's OpenMP: waiting threads sleep
    (("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"), "OMP_WAIT_POLICY", "PASSIVE"),
    # OpenBLAS in numpy and scipy, whose threads cannot sleep: one thread, since matrices are small here
    (("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"), "OPENBLAS_NUM_THREADS", "1"),
)
"""The variables with which the user may decide, and what is set if none of them is."""


def wait_asleep(environment: MutableMapping[str, str]) -> None:
    """Set what the user has not set, for the program and for workers that inherit its environment."""
    for decides, variable, value in POLICIES:
        if not any(name in environment for name in decides):
            environment[variable] = value
