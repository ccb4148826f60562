"""How the threads of the numerical libraries wait for each other, which must be said before the libraries are loaded.

Left to themselves they spin: a thread that waits for another burns its core, for milliseconds after every small piece
of work. On a machine that is busy with other work the other thread has no core, and a command took up to fifteen
times the processor time that it takes with one thread.
"""

from collections.abc import MutableMapping

POLICIES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    # torch's OpenMP: a thread that waits sleeps
    (("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"), "OMP_WAIT_POLICY", "PASSIVE"),
    # numpy's and scipy's OpenBLAS, whose threads cannot be told to sleep: what they are given here are small matrices
    (("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"), "OPENBLAS_NUM_THREADS", "1"),
)
"""Variables by which a user decides for himself, and what is set if none of them is."""


def wait_asleep(environment: MutableMapping[str, str]) -> None:
    """Set what the user has not set: for the program, and for the workers that inherit its environment."""
    for decides, variable, value in POLICIES:
        if not any(name in environment for name in decides):
            environment[variable] = value
