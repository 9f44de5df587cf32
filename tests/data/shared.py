"""The real streams beside the repository (or where COREPLAY_SHARED_DATA says), and samples drawn at random."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coreplay.data import Samples

DTYPES = (np.bool_, np.int8, np.int64, np.uint16, np.float16, np.float32, np.float64)
ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("COREPLAY_SHARED_DATA", ROOT.parent / "shared" / "data"))


def needs_shared_data(test):
    marked = pytest.mark.needs_shared_data(test)
    return pytest.mark.skipif(not SHARED.is_dir(), reason="the real streams are not beside the repository")(marked)


def real(name):
    return SHARED / name / "data.jsonl.gz"


@st.composite
def samples(draw):
    """Draw samples with any columns: texts or images, labels, weights, extras of several dtypes and shapes."""
    n = draw(st.integers(0, 6))

    def column(dtype, *shape, **limits):
        return draw(hnp.arrays(dtype, (n, *shape), elements=hnp.from_dtype(np.dtype(dtype), **limits)))

    texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), min_size=n, max_size=n)
    images = draw(st.booleans())
    extras = {
        name: column(dtype, *draw(st.sampled_from([(), (2,), (3, 0), (2, 1, 2)])))
        for name, dtype in draw(
            st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), st.sampled_from(DTYPES), max_size=2)
        ).items()
    }
    return Samples(
        column(draw(st.sampled_from(DTYPES)), 2, 3, allow_nan=False)
        if images
        else pa.array(draw(texts), pa.large_string()),
        draw(hnp.arrays(np.uint64, n, unique=True)),
        column(np.int64, min_value=-1, max_value=1),
        column(np.int64),
        ("x", "y"),
        column(np.int64, min_value=0, max_value=9),
        column(np.float32, min_value=0, max_value=1e6),
        extras,
    )
