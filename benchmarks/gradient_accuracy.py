"""Relative error of gram, combine and project against a loop of plain autograd over the samples.

Run: python -m benchmarks.gradient_accuracy
"""

import numpy as np
import torch

import coreplay
from benchmarks.gradient_models import (
    LSTMClassifier,
    Twice,
    cnn,
    cross_entropy,
    full_loss,
    masked_loss,
    print_versions,
    tinybert,
    utterances,
)

LIMITS = {torch.float32: 1e-4, torch.float64: 1e-9}


def loop(model, loss, batch, n):
    """Return the unit gradients, one row a sample, by one backward pass for each."""
    rows = []
    for i in range(n):
        model.zero_grad(set_to_none=True)
        one = {k: v[i : i + 1] for k, v in batch.items()} if isinstance(batch, dict) else [v[i : i + 1] for v in batch]
        loss(model, one).sum().backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).numpy())
    rows = np.stack(rows)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def cases(dtype):
    padded = utterances(12, shortest=5)
    yield "TinyBERT, tied, padded, logits everywhere", tinybert(dtype=dtype), full_loss, padded, 12
    yield "TinyBERT, tied, padded, masked logits only", tinybert(dtype=dtype), masked_loss, padded, 12
    torch.manual_seed(0)
    images = torch.randn(48, 3, 32, 32, dtype=dtype)
    yield "CNN with GroupNorm", cnn().to(dtype), cross_entropy, (images, torch.arange(48) % 10), 48
    ids = torch.randint(0, 1000, (48, 20))
    yield "LSTM classifier", LSTMClassifier().to(dtype), cross_entropy, (ids, torch.arange(48) % 10), 48
    vectors = torch.randn(100, 64, dtype=dtype)
    yield "one layer twice", Twice().to(dtype), cross_entropy, (vectors, torch.arange(100) % 10), 100


def main():
    print_versions("numpy")
    print(f"{'model':44} {'dtype':8} {'gram':>9} {'combine':>9} {'project':>9} {'limit':>7}")
    for dtype, limit in LIMITS.items():
        for name, model, loss, batch, n in cases(dtype):
            expected = loop(model, loss, batch, n)
            model.zero_grad(set_to_none=True)
            used = [key for key, p in model.named_parameters() if "pooler" not in key]
            G = coreplay.gradient_matrix(model, loss, batch, parameters=used)
            rng = np.random.default_rng(0)
            x, v = rng.uniform(size=n), rng.normal(size=expected.shape[1])
            pairs = [
                (G.gram(), expected @ expected.T),
                (G.combine(x), x @ expected),
                (G.project(v), expected @ v),
            ]
            errors = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs]
            verdict = "" if max(errors) <= limit else "  MISSED"
            kind = str(dtype).removeprefix("torch.")
            print(
                f"{name:44} {kind:8} " + " ".join(f"{e:9.1e}" for e in errors) + f" {limit:7.0e}{verdict}",
                flush=True,
            )


if __name__ == "__main__":
    main()
