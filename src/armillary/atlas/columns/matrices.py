"""Columns of the matrices table: every stored matrix compared with a random one of its shape."""

from functools import partial

from armillary.atlas.columns.column import Column, Table

_matrix = partial(Column, table="matrices", lens="lenses.spectral", measure=False)

MATRICES = Table(
    "matrices",
    "A row for every stored matrix of every layer, compared with a random one of its shape.",
    (
        _matrix("layer", "The layer, counted from 0.", kind="whole", sets=("usual",)),
        _matrix("matrix", "Which matrix of the layer: q, k, v, o, gate, up or down.", kind="word", sets=("usual",)),
        _matrix("rows", "Rows of the matrix as it is stored.", kind="whole", sets=("usual",)),
        _matrix("columns", "Columns of the matrix as it is stored.", kind="whole", sets=("usual",)),
        _matrix("energy", "Sum of the squared singular values.", r"\|W\|_F^2", explained="T6.13"),
        _matrix("largest", "Largest singular value.", r"\|W\|_2", sets=("usual",)),
        _matrix("stable_rank", "Stable rank of the matrix.", r"\|W\|_F^2 / \|W\|_2^2", sets=("usual",)),
        _matrix("entropy_rank", "Effective number of directions of the matrix.", r"\exp(-\sum_i p_i \log p_i)"),
        _matrix(
            "xavier_energy", "Energy over that of a Xavier matrix of this shape.", sets=("usual",), explained="T6.13"
        ),
        _matrix(
            "xavier_largest",
            "Largest singular value over that of a Xavier matrix of this shape.",
            sets=("usual",),
            explained="T6.12",
        ),
        _matrix(
            "mp_variance",
            "Variance of the noise, fitted to the bulk by Marchenko-Pastur's median.",
            explained="T2.5c",
        ),
        _matrix(
            "mp_distance",
            "Largest distance between the spectrum's distribution and Marchenko-Pastur's.",
            r"\sup |F_n - F|",
            sets=("usual",),
            explained="T2.5c",
        ),
        _matrix(
            "mp_edge",
            "Squared singular values above this are outliers.",
            explained="T6.12",
        ),
        _matrix("outliers", "How many squared singular values lie above the edge.", kind="whole", sets=("usual",)),
        _matrix("outlier_energy", "Share of the energy in the outliers.", unit="share", sets=("usual",)),
    ),
)
