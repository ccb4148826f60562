"""The numbers that Song and Zhong print in Tables 1, 4, 5 and 6."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Row(NamedTuple):
    """A row of Table 1: means over layers."""

    rank: float
    relative_norm: float
    inter: float
    intra: float
    incoherence: float


TABLE_1 = {
    ("GPT2", "OpenWebText"): Row(11.38, 0.84, 0.10, 0.44, 0.051),
    ("GPT2", "WikiText"): Row(11.69, 0.76, 0.11, 0.41, 0.039),
    ("BERT", "OpenWebText"): Row(12.54, 0.78, 0.13, 0.26, 0.046),
    ("BERT", "WikiText"): Row(12.62, 0.76, 0.17, 0.31, 0.043),
    ("BLOOM", "OpenWebText"): Row(10.23, 0.30, 0.15, 0.32, 0.158),
    ("BLOOM", "WikiText"): Row(10.00, 0.31, 0.14, 0.31, 0.148),
    ("Llama2", "OpenWebText"): Row(9.38, 0.14, 0.17, 0.43, 0.190),
    ("Llama2", "WikiText"): Row(8.69, 0.07, 0.47, 0.60, 0.316),
    ("Llama2", "GitHub"): Row(8.69, 0.21, 0.17, 0.40, 0.189),
}

_RANK = {
    ("BERT", "GitHub"): "15 16 16 16 14 11 11 9 10 10 11 11 12",
    ("BERT", "OpenWebText"): "15 16 18 16 11 11 9 9 11 11 11 11 13",
    ("BERT", "WikiText"): "15 16 18 16 12 11 9 9 11 11 11 12 12",
    ("BLOOM", "GitHub"): "8 9 9 8 9 10 10 11 10 10 10 10 10",
    ("BLOOM", "OpenWebText"): "6 10 10 11 11 10 11 11 11 11 10 10 11",
    ("BLOOM", "WikiText"): "6 8 9 10 10 11 11 11 11 11 11 10 11",
    ("GPT2", "GitHub"): "15 14 13 12 12 11 11 10 10 10 11 11 10",
    ("GPT2", "OpenWebText"): "15 13 14 12 13 11 10 10 10 10 9 9 12",
    ("GPT2", "WikiText"): "15 14 14 12 11 11 11 11 11 11 9 10 12",
    ("Llama2", "GitHub"): "6 10 9 8 10 8 8 9 9 9 9 8 10",
    ("Llama2", "OpenWebText"): "7 10 10 11 11 10 9 10 9 8 9 8 10",
    ("Llama2", "WikiText"): "8 10 10 10 9 8 8 8 8 8 8 8 10",
}

_STABLE_RANK = {
    ("BERT", "GitHub"): "9.19 7.79 5.26 4.73 4.34 3.84 3.48 3.20 2.70 2.45 2.04 1.84 1.91",
    ("BERT", "OpenWebText"): "9.19 7.63 5.25 4.73 4.10 3.53 3.16 2.84 2.46 2.30 2.18 2.22 2.15",
    ("BERT", "WikiText"): "9.19 7.78 5.03 4.58 3.99 3.48 3.14 2.82 2.42 2.27 2.13 2.16 2.12",
    ("BLOOM", "GitHub"): "8.39 1.25 1.20 1.21 1.21 1.23 1.29 1.29 1.28 1.25 1.21 1.02 1.00",
    ("BLOOM", "OpenWebText"): "8.33 1.27 1.30 1.24 1.24 1.27 1.32 1.34 1.33 1.26 1.16 1.01 1.00",
    ("BLOOM", "WikiText"): "8.42 1.27 1.28 1.30 1.31 1.34 1.41 1.43 1.41 1.32 1.22 1.01 1.00",
    ("GPT2", "GitHub"): "2.05 1.92 1.91 1.89 1.90 1.90 1.92 1.94 1.98 2.03 2.05 1.70 1.11",
    ("GPT2", "OpenWebText"): "2.05 1.92 1.91 1.89 1.88 1.88 1.88 1.90 1.91 1.96 2.02 2.24 1.49",
    ("GPT2", "WikiText"): "2.05 1.92 1.91 1.89 1.88 1.88 1.88 1.90 1.91 1.97 2.03 2.19 1.56",
    ("Llama2", "GitHub"): "24.87 1.00 1.00 1.00 1.00 1.00 1.01 1.01 1.01 1.01 1.02 1.03 1.17",
    ("Llama2", "OpenWebText"): "52.23 1.00 1.00 1.00 1.00 1.00 1.01 1.01 1.02 1.02 1.03 1.05 1.44",
    ("Llama2", "WikiText"): "24.70 1.00 1.00 1.01 1.01 1.02 1.03 1.05 1.09 1.16 1.20 1.26 1.30",
}

_RELATIVE_NORM = {
    ("BERT", "GitHub"): "0.445 0.483 0.569 0.616 0.648 0.707 0.764 0.786 0.768 0.686 0.631 0.562 0.473",
    ("BERT", "OpenWebText"): "0.465 0.546 0.660 0.759 0.877 0.977 0.973 0.967 0.953 0.901 0.777 0.658 0.596",
    ("BERT", "WikiText"): "0.454 0.502 0.626 0.695 0.798 0.916 0.968 0.965 0.949 0.887 0.756 0.682 0.627",
    ("BLOOM", "GitHub"): "0.013 0.123 0.232 0.279 0.343 0.385 0.343 0.306 0.301 0.306 0.325 0.219 0.181",
    ("BLOOM", "OpenWebText"): "0.012 0.138 0.194 0.264 0.315 0.342 0.297 0.267 0.264 0.300 0.392 0.575 0.589",
    ("BLOOM", "WikiText"): "0.013 0.149 0.222 0.287 0.328 0.352 0.336 0.301 0.295 0.325 0.407 0.494 0.491",
    ("GPT2", "GitHub"): "0.999 0.994 0.996 0.972 0.812 0.762 0.672 0.600 0.489 0.442 0.386 0.303 0.123",
    ("GPT2", "OpenWebText"): "1.000 0.996 0.990 0.989 0.986 0.983 0.981 0.979 0.974 0.841 0.631 0.480 0.075",
    ("GPT2", "WikiText"): "1.000 0.995 0.991 0.989 0.987 0.986 0.984 0.981 0.981 0.933 0.680 0.555 0.110",
    ("Llama2", "GitHub"): "0.029 0.221 0.221 0.222 0.222 0.222 0.223 0.223 0.224 0.225 0.226 0.227 0.183",
    ("Llama2", "OpenWebText"): "0.038 0.146 0.146 0.146 0.147 0.147 0.148 0.148 0.150 0.152 0.154 0.154 0.148",
    ("Llama2", "WikiText"): "0.034 0.060 0.060 0.060 0.060 0.061 0.062 0.063 0.065 0.068 0.072 0.076 0.191",
}


def _numbers(table: dict[tuple[str, str], str]) -> dict[tuple[str, str], Float[np.ndarray, "layer"]]:
    return {row: np.array(line.split(), dtype=float) for row, line in table.items()}


RANK, STABLE_RANK, RELATIVE_NORM = (_numbers(table) for table in (_RANK, _STABLE_RANK, _RELATIVE_NORM))
"""Tables 4, 5 and 6: (model, corpus) -> a number for each of the 13 layers that are shown."""
