"""scikit-learn's 1797 handwritten digits, 8 x 8: rotated a little more each period, or new classes each period."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from coreplay.data.partition import client_names
from coreplay.data.sources import source
from coreplay.data.stream import FederatedStream
from coreplay.errors import InputError
from coreplay.seeding import generator
from coreplay.validation import Count, Positive, TestFraction


@source("digits")
def digits(
    *,
    change: Literal["rotated", "class_incremental"] = "rotated",
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
    from scipy.ndimage import rotate
    from sklearn.datasets import load_digits

    if change == "class_incremental" and num_periods > 10:
        raise InputError(f"num_periods must be at most 10, one class per period: got {num_periods}")
    bunch = load_digits()
    images, classes = bunch.images.astype(np.float32) / 16, bunch.target
    rng = generator(seed, "digits")
    order = rng.permutation(len(images))
    images, classes = images[order], classes[order]
    if change == "rotated":
        period = np.arange(len(images)) * num_periods // len(images)
        angles = np.linspace(0, degrees, num_periods) if num_periods > 1 else np.zeros(1)
        images = np.stack(
            [rotate(image, angles[t], reshape=False, order=1) for image, t in zip(images, period, strict=True)]
        )
    else:
        period = classes * num_periods // 10
    shares = rng.dirichlet(np.full(num_clients, alpha), size=10)
    names = client_names(num_clients)
    client = [names[rng.choice(num_clients, p=shares[c])] for c in classes]
    return FederatedStream(
        client,
        period,
        rng.random(len(images)) < test,
        images,
        [str(c) for c in classes],
        periods=num_periods,
        label_names=[str(c) for c in range(10)],
    )
