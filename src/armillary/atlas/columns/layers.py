"""Columns of the layers table: the residual stream from the embeddings to the last block."""

from functools import partial

from armillary.atlas.columns.column import Column, Table

_positional = partial(Column, table="layers", lens="lenses.positional")

LAYERS = Table(
    "layers",
    "A row for every point of the residual stream.",
    (
        _positional(
            "layer",
            "The point of the residual stream: 0 is after the embeddings, L after the last block.",
            kind="whole",
            sets=("usual",),
            measure=False,
            contract=True,
        ),
        _positional(
            "pos_share",
            "Share of the variance that depends on the position alone.",
            r"\|pos\|^2 / \|h - \mu\|^2",
            unit="share",
            sets=("usual",),
            contract=True,
            explained="S2",
        ),
        _positional(
            "ctx_share",
            "Share of the variance that depends on the sequence alone.",
            r"\|ctx\|^2 / \|h - \mu\|^2",
            unit="share",
            sets=("usual",),
            contract=True,
            explained="S2",
        ),
        _positional(
            "resid_share",
            "Share of the variance that depends on neither position nor sequence alone.",
            unit="share",
            sets=("usual",),
            contract=True,
            explained="S2",
        ),
        _positional(
            "stable_rank",
            "Stable rank of the positional vectors.",
            r"\|P\|_F^2 / \|P\|_2^2",
            sets=("usual",),
            contract=True,
        ),
        _positional(
            "screenot_rank",
            "Number of directions of the positional vectors above the noise (ScreeNOT, at most 20).",
            kind="whole",
            sets=("usual",),
            contract=True,
        ),
        _positional(
            "relative_norm",
            "Spectral norm of the positional vectors over that of all centered vectors.",
            r"\sqrt{C}\,\|P\|_2 / \|M\|_2",
            sets=("usual",),
            contract=True,
            explained="S3",
        ),
        *(
            _positional(
                f"dct_energy_{k}",
                f"Share of the positional Gram matrix in its {k} lowest frequencies: near 1 is smooth in position."
                if k > 1
                else "Share of the positional Gram matrix in its lowest frequency.",
                rf"r_{{{k}}} = \sum_{{i,j<{k}}} \hat{{G}}_{{ij}}^2 / \sum \hat{{G}}_{{ij}}^2",
                unit="share",
                sets=("usual",) if k == 10 else (),
                contract=True,
                explained="S5",
            )
            for k in (1, 3, 5, 10)
        ),
        _positional(
            "incoherence_mean",
            "Mean absolute cosine between positional and context vectors.",
            r"\langle |\cos(pos_t, ctx_c)| \rangle",
            unit="cosine",
            sets=("usual",),
            contract=True,
            explained="S20",
        ),
        _positional(
            "incoherence_max",
            "Largest absolute cosine between positional and context vectors.",
            unit="cosine",
            contract=True,
            explained="S20",
        ),
        _positional(
            "intra_similarity",
            "Mean cosine of context vectors of the same document.",
            unit="cosine",
            sets=("usual",),
            contract=True,
        ),
        _positional(
            "inter_similarity",
            "Mean cosine of context vectors of different documents.",
            unit="cosine",
            sets=("usual",),
            contract=True,
        ),
        _positional("mean_norm", "Mean length of the vectors at kept positions.", sets=("usual",), contract=True),
        _positional("incoherence_random_mean", "incoherence_mean of as many random directions.", unit="cosine"),
        _positional("incoherence_random_max", "incoherence_max of as many random directions.", unit="cosine"),
        _positional("first_norm", "Mean length of the vectors at the first position, often an attention sink."),
        _positional("mu_norm", "Length of the mean vector.", r"\|\mu\|"),
        _positional("pos_norm", "Mean length of the positional vectors."),
        _positional("ctx_norm", "Mean length of the context vectors."),
        _positional(
            "smoothness",
            "Largest second difference of the positional Gram matrix: small is smooth.",
            r"\max |\Delta^{(1,1)} \tilde{G}|",
            explained="S10",
        ),
        _positional(
            "low_frequency_residual",
            "Residual of the positional Gram matrix outside its 10 lowest frequencies.",
            explained="S9",
        ),
        _positional(
            "low_frequency_bound",
            "The bound on that residual from smoothness (Theorem 1, corrected).",
            explained="S9",
        ),
        _positional("token_cosine", "Mean cosine between two tokens of a sequence.", unit="cosine", explained="T7.6"),
        _positional(
            "rank_one_distance",
            "Relative distance of a sequence's tokens from their mean: 0 if all are the same vector.",
            r"\|X - \mathbf{1}\bar{x}^\top\|_F / \|X\|_F",
            explained="T7.6",
        ),
    ),
)
