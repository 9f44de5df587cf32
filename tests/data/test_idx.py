"""Images in idx files: read as they are, and refused where they are damaged."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from coreplay import InputError
from coreplay.data import load

from .shared import SHARED, needs_shared_data


def write(path: Path, array: np.ndarray) -> Path:
    raw = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.fixture
def pair(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (200, 5, 4), dtype=np.uint8)
    labels = np.arange(200, dtype=np.uint8) % 4
    return {"images": write(tmp_path / "x.gz", images), "labels": write(tmp_path / "y", labels)}, images, labels


def test_every_image_comes_back_with_its_label(pair):
    paths, images, labels = pair
    stream = load("idx", **paths, num_clients=3, num_periods=2)
    assert stream.label_names == ("0", "1", "2", "3")
    assert len(stream) == 200
    known = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    for client, period, samples in stream.cells():
        for image, label in zip(samples.content, samples.label, strict=True):
            assert known[np.rint(image * 255).astype(np.uint8).tobytes()] == label, (client, period)
            assert label // 2 == period
    assert len(load("idx", **paths, num_clients=3, num_periods=2, max_images=50)) == 50


def test_damaged_files_are_refused_by_name(pair, tmp_path):
    paths, images, _ = pair
    swapped = {"images": paths["labels"], "labels": paths["images"]}
    with pytest.raises(InputError, match="3 dimensions of unsigned bytes: got type 8 and 1 dimensions; are images and"):
        load("idx", **swapped)
    short = tmp_path / "short"
    short.write_bytes(paths["labels"].read_bytes()[:-1])
    with pytest.raises(InputError, match=r"short: must hold the 200 bytes of its shape \(200,\)"):
        load("idx", images=paths["images"], labels=short)
    fewer = write(tmp_path / "fewer", images[:7])
    with pytest.raises(InputError, match=r"fewer has 7 images and .* has 200 labels: use a pair"):
        load("idx", images=fewer, labels=paths["labels"])
    huge = tmp_path / "huge"
    huge.write_bytes(struct.pack(">HBBIII", 0, 8, 3, 2**31, 2**31, 2**31))
    with pytest.raises(InputError, match="huge: its header gives the shape"):
        load("idx", images=huge, labels=paths["labels"])
    empty = tmp_path / "empty.gz"
    empty.write_bytes(b"no gzip")
    with pytest.raises(InputError, match=r"empty\.gz' can't be read as an idx file"):
        load("idx", images=empty, labels=paths["labels"])
    with pytest.raises(InputError, match="'nowhere' does not exist"):
        load("idx", images="nowhere", labels=paths["labels"])


@needs_shared_data
def test_mnist_is_read_as_it_is_distributed():
    folder = SHARED / "mnist10k"
    paths = {name: folder / f"t10k-{name}-idx{n}-ubyte.gz" for name, n in (("images", 3), ("labels", 1))}
    stream = load("idx", **paths, num_clients=10)
    assert len(stream) == 10_000
    assert stream.content.shape[1:] == (28, 28)
    assert np.bincount(stream.label).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
