"""Images in idx files, as MNIST and Fashion-MNIST are distributed, plain or gzipped."""

import gzip
import math
import struct
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coreplay.data.images import Change, image_stream
from coreplay.data.sources import source
from coreplay.data.stream import FederatedStream
from coreplay.errors import InputError
from coreplay.files import reading
from coreplay.seeding import generator
from coreplay.validation import Count, Positive, TestFraction

UNSIGNED_BYTE = 8  # the type that an idx header gives to pixels and labels
LARGEST = 2**31  # bytes of a file once it is unpacked


@source("idx")
def idx(
    *,
    images: Path | str,
    labels: Path | str,
    change: Change = "class_incremental",
    num_clients: Count = 20,
    num_periods: Count = 5,
    alpha: Positive = 1.0,
    degrees: Annotated[float, Field(allow_inf_nan=False)] = 90.0,
    max_images: Count | None = None,
    test: TestFraction = 0.2,
    seed: int = 0,
) -> FederatedStream:
    """Deal out the grey images of a pair of idx files (MNIST) over clients (Dirichlet) and periods.

    `max_images` takes as many at random. The other options are those of the source `digits`.
    """
    pixels, classes = read_idx(Path(images), 3), read_idx(Path(labels), 1).astype(np.int64)
    if len(pixels) != len(classes):
        raise InputError(f"{images} has {len(pixels)} images and {labels} has {len(classes)} labels: use a pair")
    if max_images is not None and max_images < len(pixels):
        rows = np.sort(generator(seed, "idx images").choice(len(pixels), max_images, replace=False))
        pixels, classes = pixels[rows], classes[rows]
    return image_stream(
        (pixels / 255).astype(np.float32),
        classes,
        [str(c) for c in range(int(classes.max()) + 1)],
        name="idx",
        change=change,
        num_clients=num_clients,
        num_periods=num_periods,
        alpha=alpha,
        degrees=degrees,
        test=test,
        seed=seed,
    )


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of bytes with this number of dimensions."""
    with reading(path, "an idx file"), gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        zero, kind, found = struct.unpack(">HBB", file.read(4))
        if (zero, kind) != (0, UNSIGNED_BYTE) or found != dimensions:
            raise InputError(
                f"{path}: its header must say {dimensions} dimensions of unsigned bytes: got type {kind} and "
                f"{found} dimensions; are images and labels exchanged?"
            )
        shape = struct.unpack(f">{found}I", file.read(4 * found))
        size = math.prod(shape)
        if not 0 < size <= LARGEST:
            raise InputError(f"{path}: its header gives the shape {shape}: from 1 to {LARGEST} bytes can be read")
        content = file.read(size + 1)
    if len(content) != size:
        raise InputError(f"{path}: must hold the {size} bytes of its shape {shape}: it holds fewer or more")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
