"""scikit-learn's 1797 handwritten digits, 8 x 8: rotated a little more each period, or new classes each period."""

from typing import Annotated

import numpy as np
from pydantic import Field

from coreplay.data.images import Change, image_stream
from coreplay.data.sources import source
from coreplay.data.stream import FederatedStream
from coreplay.validation import Count, Positive, TestFraction


@source("digits")
def digits(
    *,
    change: Change = "rotated",
    num_clients: Count = 20,
    num_periods: Count = 5,
    alpha: Positive = 1.0,
    degrees: Annotated[float, Field(allow_inf_nan=False)] = 90.0,
    test: TestFraction = 0.2,
    seed: int = 0,
) -> FederatedStream:
    """Deal out scikit-learn's digits over clients (Dirichlet) and periods (rotated or class_incremental).

    `degrees` is the rotation in the last period. Class-incremental periods hold 10/`num_periods` new classes each.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return image_stream(
        bunch.images.astype(np.float32) / 16,
        bunch.target,
        [str(c) for c in range(10)],
        name="digits",
        change=change,
        num_clients=num_clients,
        num_periods=num_periods,
        alpha=alpha,
        degrees=degrees,
        test=test,
        seed=seed,
    )
