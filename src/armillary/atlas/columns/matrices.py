"""Columns of the tables of stored matrices: compared with a random one of their shape, and with another model's."""

from functools import partial

from armillary.atlas.columns.column import Column, Set, Table

_fit = partial(Column, table="matrices", lens="lenses.power_law", measure=False)
_change = partial(Column, table="weight_changes", lens="lenses.weight_changes", measure=False)
_matrix = partial(Column, table="matrices", lens="lenses.spectral", measure=False)
_since = partial(Column, table="weight_changes", lens="scanning.weight_changes", measure=False)


def _power_law(suffix: str, of: str, sets: tuple[Set, ...]) -> tuple[Column, ...]:
    """The fit of a power law to the tail of a spectrum (`armillary weights --power-law`)."""
    columns = (
        _fit(
            f"alpha{suffix}",
            f"{of}Exponent of the power law that fits the tail of the squared singular values best.",
            r"p(x) \propto x^{-\alpha},\; x \ge x_{\min}",
            sets=sets or ("usual",),
        ),
        _fit(
            f"alpha_distance{suffix}",
            f"{of}Largest distance between the distribution of the tail and the power law.",
            r"\sup |F_n - F|",
            sets=sets,
        ),
        _fit(f"alpha_xmin{suffix}", f"{of}Where the tail of the power law begins.", r"x_{\min}"),
        _fit(f"alpha_tail{suffix}", f"{of}How many squared singular values are in the tail.", kind="whole", sets=sets),
    )
    if not suffix:
        return columns
    words = f"{of}How many squared singular values lie above the edge of noise."
    return (*columns, _fit(f"outliers{suffix}", words, kind="whole"))


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
        *_power_law("", "", ("usual",)),
        _fit(
            "alpha_outliers",
            "How many squared singular values of the power law's tail are outliers of Marchenko-Pastur.",
            kind="whole",
            sets=("usual",),
        ),
        *_power_law("_random", "For a Gaussian matrix of this shape and norm. ", ()),
        *_power_law("_shuffled", "For the matrix's own entries in random order. ", ()),
    ),
)

_RANDOM = "; of Gaussian changes of the same norms"

WEIGHT_CHANGES = Table(
    "weight_changes",
    "A row for every head's query-key and value-output matrix, and every stored matrix: its change from another model.",
    (
        _since("since", "The checkpoint before the change, where several are compared.", kind="word", sets=("usual",)),
        _since("checkpoint", "The checkpoint after the change.", kind="word", sets=("usual",)),
        _change("layer", "The layer, counted from 0.", kind="whole", sets=("usual",)),
        _change(
            "part",
            "qk: the head's query-key matrix; ov: its value-output matrix; else which stored matrix (q, k, v, o, gate, "
            "up, down).",
            kind="word",
            sets=("usual",),
        ),
        _change("head", "The head; missing for a stored matrix.", kind="whole", sets=("usual",)),
        _change("norm", "Frobenius norm of the change.", r"\|\Delta W\|_F"),
        _change(
            "relative",
            "Norm of the change over that of the matrix before it.",
            r"\|\Delta W\|_F / \|W\|_F",
            sets=("usual",),
        ),
        _change("largest", "Largest singular value of the change.", r"\|\Delta W\|_2", sets=("usual",)),
        _change("stable_rank", "Stable rank of the change.", r"\|\Delta W\|_F^2 / \|\Delta W\|_2^2", sets=("usual",)),
        _change("stable_rank_random", f"Stable rank{_RANDOM}.", sets=("usual",)),
        _change("entropy_rank", "Effective number of directions of the change.", r"\exp(-\sum_i p_i \log p_i)"),
        _change("entropy_rank_random", f"Effective number of directions{_RANDOM}."),
        _change(
            "rank",
            "Directions whose squared singular value is above rounding (1e-11 of the largest).",
            kind="whole",
            sets=("usual",),
        ),
        *(
            column
            for side, where in (("in", "read (queries for qk)"), ("out", "written (keys for qk)"))
            for column in (
                _change(
                    f"overlap_{side}",
                    f"How far the four leading directions of the change lie among those of the matrix, where it is "
                    f"{where}: 0 to 1.",
                    r"\|U_{\Delta}^\top U_W\|_F^2 / 4",
                    unit="share",
                    sets=("usual",),
                ),
                _change(f"overlap_{side}_random", f"The same{_RANDOM}.", unit="share", sets=("usual",)),
            )
        ),
        _change(
            "mp_distance",
            "Of a stored matrix: largest distance between the change's spectrum and Marchenko-Pastur's.",
            r"\sup |F_n - F|",
            explained="T2.5c",
        ),
        _change(
            "outliers",
            "Of a stored matrix: how many squared singular values of the change lie above the edge of noise.",
            kind="whole",
            sets=("usual",),
            explained="T6.12",
        ),
        _change("outlier_energy", "Share of the change's energy in the outliers.", unit="share", sets=("usual",)),
    ),
)
