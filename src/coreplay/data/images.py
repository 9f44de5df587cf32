"""From labelled images to a stream: dealt to clients, and changing from period to period."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coreplay.data.partition import client_names
from coreplay.data.samples import Ints
from coreplay.data.stream import FederatedStream
from coreplay.errors import InputError
from coreplay.seeding import generator

Change = Literal["rotated", "class_incremental"]


def image_stream(
    images: NDArray[np.float32],
    classes: Ints,
    label_names: Sequence[str],
    *,
    name: str,
    change: Change,
    num_clients: int,
    num_periods: int,
    alpha: float,
    degrees: float,
    test: float,
    seed: int,
) -> FederatedStream:
    """Deal images to clients, class by class by a Dirichlet draw, and to periods.

    "rotated" splits them at random and rotates each period a little more, up to `degrees` in the last one.
    "class_incremental" gives each period its own classes. `name` is a part of the random seed.
    """
    kinds = len(label_names)
    if change == "class_incremental" and num_periods > kinds:
        raise InputError(f"num_periods must be at most {kinds}, one class per period: got {num_periods}")
    rng = generator(seed, name)
    order = rng.permutation(len(images))
    images, classes = images[order], classes[order]
    if change == "rotated":
        from scipy.ndimage import rotate

        period = np.arange(len(images)) * num_periods // len(images)
        angles = np.linspace(0, degrees, num_periods) if num_periods > 1 else np.zeros(1)
        images = np.stack(
            [rotate(image, angles[t], reshape=False, order=1) for image, t in zip(images, period, strict=True)]
        )
    else:
        period = classes * num_periods // kinds
    shares = rng.dirichlet(np.full(num_clients, alpha), size=kinds)
    names = client_names(num_clients)
    client = [names[rng.choice(num_clients, p=shares[c])] for c in classes]
    tests = rng.random(len(images)) < test
    labels = [label_names[c] for c in classes]
    return FederatedStream(client, period, tests, images, labels, periods=num_periods, label_names=label_names)
