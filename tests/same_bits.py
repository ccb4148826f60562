"""Two atlases, compared to the last bit."""

import numpy as np

from armillary.atlas.atlas import Atlas


def arrays(atlas: Atlas) -> dict[str, np.ndarray]:
    """Every array of an atlas by name."""
    return {
        f"{node.path}/{name}": variable.to_numpy()
        for node in atlas.tree.subtree
        for name, variable in node.to_dataset().variables.items()
    }


def assert_identical(a: Atlas, b: Atlas) -> None:
    """Every array of the two has the same bits; of text, the same characters."""
    ours, theirs = arrays(a), arrays(b)
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        assert values.dtype == theirs[name].dtype
        if values.dtype.kind == "f":
            assert values.tobytes() == theirs[name].tobytes(), name
        else:
            assert np.array_equal(values, theirs[name]), name
