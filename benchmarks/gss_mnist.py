"""Gradient-based sample selection on MNIST as published (Aljundi et al. 2019): one client, five tasks, one pass.

Tasks are pairs of digits with 1000 images each, or with one task ten times as large as the others. Images arrive in
batches of 10; each batch is trained on for some steps together with as many samples drawn from the buffer. After every
`--every` images the buffer is chosen again, from itself and what has come since. Accuracy is on all ten digits.

The model has two hidden layers of 100 units. The images are the 10 000 test images of MNIST, split by their index (7 of
10 for training), because the training images are not at hand; published figures are from those.

    python -m benchmarks.gss_mnist ../shared/data/mnist10k [--seeds 5] [--buffers 300 500] [--iterations 10]
"""

import argparse
import gzip
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import coreplay
from benchmarks.common import header

METHODS = (
    "naive_uniform",
    "reservoir",
    "gss_greedy",
    "gss_clustering",
    "gss_iqp",
    "relaxation",
    "polished",
    "class_balanced",
    "facility_location",
)
PUBLISHED = {
    ("even", 300): {"naive_uniform": 37.5, "gss_greedy": 82.6, "gss_clustering": 75.7},
    ("even", 400): {"naive_uniform": 45.9, "gss_greedy": 84.6, "gss_clustering": 81.4},
    ("even", 500): {"naive_uniform": 57.9, "gss_greedy": 84.8, "gss_clustering": 83.9},
    ("uneven", 300): {"reservoir": 69.1, "gss_greedy": 78.0, "gss_iqp": 76.5},
}


def images(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images as rows of floats, and their digits."""
    with gzip.open(folder / "t10k-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), dtype=np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(folder / "t10k-labels-idx1-ubyte.gz") as file:
        digits = np.frombuffer(file.read(), dtype=np.uint8, offset=8)
    return torch.from_numpy(pixels.astype(np.float32) / 255), torch.from_numpy(digits.astype(np.int64))


def stream(digits: torch.Tensor, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Return the training images in the order in which they come: task by task."""
    order = []
    large = int(rng.integers(5))
    for task in range(5):
        rows = np.flatnonzero((digits.numpy() // 2 == task) & (np.arange(len(digits)) % 10 < 7))
        count = 1000 if kind == "even" or task == large else 100
        order.append(rng.permutation(rows)[:count])
    return np.concatenate(order)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def accuracy(
    x: torch.Tensor, y: torch.Tensor, order: np.ndarray, method: str, buffer: int, seed: int, given: argparse.Namespace
) -> float:
    """Return the accuracy on all digits after one pass, in per cent."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=given.rate)
    kept, fresh, seen = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), 0
    for start in range(0, len(order), 10):
        batch = order[start : start + 10]
        for _ in range(given.iterations):
            drawn = rng.choice(kept, min(10, len(kept)), replace=False) if len(kept) else kept
            rows = np.concatenate([batch, drawn])
            optimizer.zero_grad()
            loss(model, (x[rows], y[rows])).mean().backward()
            optimizer.step()
        fresh = np.concatenate([fresh, batch])
        if len(fresh) >= given.every or start + 10 >= len(order):
            pool = np.concatenate([kept, fresh])
            new = np.arange(len(pool)) >= len(kept)
            gradients = coreplay.gradient_matrix(model, loss, (x[pool], y[pool]), batch_first=True)
            columns = {"label": y[pool].numpy()}
            rows = coreplay.select(
                gradients, budget=buffer, method=method, new=new, seen=seen, columns=columns, seed=rng
            )
            kept, seen, fresh = pool[rows], seen + len(fresh), np.empty(0, dtype=np.int64)
    test = np.arange(len(y)) % 10 >= 7
    with torch.no_grad():
        return 100 * float((model(x[test]).argmax(dim=1) == y[test]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--buffers", type=int, nargs="*", default=[300, 400, 500])
    parser.add_argument("--kinds", nargs="*", default=["even", "uneven"])
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--rate", type=float, default=0.05)
    given = parser.parse_args()
    torch.set_num_threads(1)
    header("torch")
    print(f"{given.seeds} seeds, {given.iterations} steps per batch, chosen every {given.every}, rate {given.rate}")
    x, y = images(given.folder)
    for kind in given.kinds:
        for buffer in given.buffers if kind == "even" else given.buffers[:1]:
            for method in given.methods:
                began = time.perf_counter()
                found = []
                for seed in range(given.first_seed, given.first_seed + given.seeds):
                    order = stream(y, kind, np.random.default_rng(1000 + seed))
                    found.append(accuracy(x, y, order, method, buffer, seed, given))
                spread = statistics.stdev(found) if len(found) > 1 else 0.0
                known = PUBLISHED.get((kind, buffer), {}).get(method)
                shown = f"published {known:.1f}" if known else ""
                seconds = (time.perf_counter() - began) / len(found)
                print(
                    f"{kind:<7} buffer {buffer}  {method:<18} {statistics.mean(found):5.1f} ± {spread:4.1f} %  "
                    f"{seconds:6.1f} s per run  {shown}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
