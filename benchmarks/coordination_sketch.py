"""Sketched contributions: 1000 times fewer bytes, and what that costs in the objective (issue 4).

    python -m benchmarks.coordination_sketch

20 clients whose words fall off as Zipf says, each in an order of its own after the 200 most frequent; a TinyBERT of
14.3 M parameters, trained on all of them for a few steps; gradients of masked language modelling. One side coordinates
on exact gradients, the other on sketches of d/1000 numbers; both selections are judged by the exact gradients.
"""

import argparse
import time
from importlib.metadata import version

import numpy as np
import torch
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM

import coreplay
from coreplay.experiments.coordination import versions

WORDS, TOKENS, MASKED, MASK, FIRST = 30_522, 12, 2, 4, 5


def tinybert() -> BertForMaskedLM:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=312, num_hidden_layers=4, num_attention_heads=12, intermediate_size=1200
    )
    return BertForMaskedLM(config).eval()


def utterances(client: int, count: int, seed: int) -> dict[str, torch.Tensor]:
    """Draw a client's samples: frequent words are common to all, the order of the others is the client's own."""
    own = np.random.default_rng((client, 17))
    words = np.arange(FIRST, WORDS)
    words[200:] = own.permutation(words[200:])
    rng = np.random.default_rng((seed, client))
    chances = 1.0 / np.arange(1, len(words) + 1)
    ids = torch.from_numpy(rng.choice(words, size=(count, TOKENS), p=chances / chances.sum()))
    places = torch.from_numpy(np.argsort(rng.random((count, TOKENS)), axis=1)[:, :MASKED].copy())
    return {
        "input_ids": ids.scatter(1, places, MASK),
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
        "position_ids": torch.arange(TOKENS).repeat(count, 1),
        "places": places,
        "labels": ids.gather(1, places),
    }


def loss(model: BertForMaskedLM, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    hidden = model.bert(**{name: batch[name] for name in names})[0]
    places = batch["places"].unsqueeze(2).expand(-1, -1, hidden.shape[2])
    logits = model.cls(hidden.gather(1, places))
    return functional.cross_entropy(logits.mT, batch["labels"], reduction="none").sum(1)


def train(model: BertForMaskedLM, clients: int, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, utterances(step % clients, 32, 1000 + step)).mean().backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--pool", type=int, default=24)
    parser.add_argument("--budget", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    model = tinybert()
    train(model, options.clients, options.steps)
    worse = []
    for seed in range(options.seeds):
        batches = [utterances(client, options.pool, seed) for client in range(options.clients)]
        began = time.perf_counter()
        exact = [coreplay.gradient_matrix(model, loss, batch, "factored", memory_limit=2**28) for batch in batches]
        size = exact[0].dimension // 1000
        sketches = [coreplay.gradient_matrix(model, loss, batch, "sketch", size=size, seed=seed) for batch in batches]
        print(
            f"\nseed {seed}: d = {exact[0].dimension}, sketch {size}, made in {time.perf_counter() - began:.1f} s",
            flush=True,
        )

        def judge(selections: list[np.ndarray], matrices: list = exact) -> float:
            total = sum(
                G.combine(np.isin(np.arange(len(G)), kept).astype(float)).astype(np.float64)
                for G, kept in zip(matrices, selections, strict=True)
            )
            return float(total @ total)

        values = {}
        for name, matrices, rounds in (
            ("alone, exact", exact, 0),
            ("exact", exact, options.rounds),
            ("sketch", sketches, options.rounds),
        ):
            began = time.perf_counter()
            found = coreplay.coordinate(matrices, options.budget, "corrective", rounds, seed)
            values[name] = judge(found.selections), found.bytes_up
            print(
                f"  {name:13} {rounds} rounds: objective {values[name][0]:9.3f}, {found.bytes_up:>13} bytes up, "
                f"{time.perf_counter() - began:6.1f} s",
                flush=True,
            )
        worse.append(values["sketch"][0] / values["exact"][0] - 1)
        fewer = values["exact"][1] / values["sketch"][1]
        print(f"  bytes: exact / sketch {fewer:.0f}; objective {worse[-1]:+.2%} (at most +2 %)")
    packages = {name: version(name) for name in ("torch", "transformers")}
    print(f"\nmean {np.mean(worse):+.2%}; versions: {versions() | packages}")


if __name__ == "__main__":
    main()
