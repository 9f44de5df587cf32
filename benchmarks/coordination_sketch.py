"""Sketched contributions: 1000 times fewer bytes, and what that costs in the objective.

    python -m benchmarks.coordination_sketch

20 clients whose words fall off as Zipf says, each in an order of its own after the 200 most frequent; a TinyBERT of
14.3 M parameters, trained on all of them for a few steps; gradients of masked language modelling. One side coordinates
on exact gradients, the other on sketches of d/1000 numbers; both selections are judged by the exact gradients.

With few clients chance decides in which local optimum a run ends, so one run a side says nothing, and other random
numbers alone hardly change a run. So every run draws its pools anew, 20 of the 24 samples of each client, for both
sides alike. Everything that `coordinate` does depends on inner products only, and so does the judgement: the gram K of
all clients' gradients together is computed once for a set of clients, and the rows of a factor L with LLᵀ = K are an
exact copy of the gradients with a few hundred numbers each; likewise for the sketches. Many runs on them are then
cheap. The grams and sketches are kept in --folder; a second call goes on from there.
"""

import argparse
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM

import coreplay
from coreplay.coordination import Contribution
from coreplay.files import atomic_write
from coreplay.runtime.run_dir import versions

WORDS, TOKENS, MASKED, MASK, FIRST = 30_522, 12, 2, 4, 5
FEWER = 1000
Floats = NDArray[np.float64]


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


@cache
def trained(clients: int, steps: int) -> BertForMaskedLM:
    model = tinybert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, utterances(step % clients, 32, 1000 + step)).mean().backward()
        optimizer.step()
    return model


def gradients(options: argparse.Namespace, seed: int) -> tuple[Floats, Floats]:
    """Return copies of all clients' unit gradients and of their sketches, from the grams of both; a row a sample."""
    path = options.folder / f"{options.clients}x{options.pool}-{options.steps}-{seed}.npz"
    if not path.exists():
        model = trained(options.clients, options.steps)
        began = time.perf_counter()
        batches = [utterances(client, options.pool, seed) for client in range(options.clients)]
        union = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        gram = coreplay.gradient_matrix(model, loss, union, "factored").gram()
        size = parameters(model) // FEWER
        sketch = coreplay.gradient_matrix(model, loss, union, "sketch", size=size, seed=seed)
        rows = np.array([sketch.combine(unit) for unit in np.eye(len(gram))])
        with atomic_write(path) as temporary:
            np.savez(temporary, gram=gram, sketch=rows)
        print(
            f"set {seed}: gram and sketches of {len(gram)} gradients in {time.perf_counter() - began:.0f} s", flush=True
        )
    with np.load(path) as kept:
        return factor(kept["gram"]), factor(kept["sketch"] @ kept["sketch"].T)


def factor(gram: Floats) -> Floats:
    """Return L with LLᵀ = K."""
    values, vectors = np.linalg.eigh(gram)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def parameters(model: BertForMaskedLM) -> int:
    return sum(p.numel() for p in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--pool", type=int, default=24)
    parser.add_argument("--drawn", type=int, default=20, help="samples of each pool that a run draws")
    parser.add_argument("--budget", type=int, default=5)
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--steps", type=int, default=30, help="of training before the gradients are taken")
    parser.add_argument("--sets", type=int, default=5, help="sets of clients, each with a sketch of its own")
    parser.add_argument("--first", type=int, default=1, help="number of the first set; 0 was used to try things out")
    parser.add_argument("--runs", type=int, default=20, help="of a set, side and number of rounds")
    parser.add_argument("--folder", type=Path, default=Path("coordination-sketch"))
    options = parser.parse_args()
    dimension = parameters(tinybert())
    sent = [
        len(Contribution("coordinate", 0, 0, "0", -1, np.zeros(size, np.float32)).to_bytes())
        for size in (dimension, dimension // FEWER)
    ]
    print(f"d = {dimension}; bytes of a contribution: {sent[0]} exact, {sent[1]} sketch, ratio {sent[0] / sent[1]:.0f}")
    print("objective by the exact gradients, mean of the runs; sketch / exact − 1: geometric mean ± standard error")
    worse: dict[int, list[float]] = {rounds: [] for rounds in options.rounds}
    for number in range(options.first, options.first + options.sets):
        exact, sketch = gradients(options, number)

        def judged(rows: Floats, rounds: int, run: int, exact: Floats = exact) -> float:
            rng = np.random.default_rng(run)
            pools = [
                k * options.pool + np.sort(rng.choice(options.pool, options.drawn, replace=False))
                for k in range(options.clients)
            ]
            found = coreplay.coordinate([rows[pool] for pool in pools], options.budget, rounds=rounds, seed=run)
            kept = np.concatenate([pool[chosen] for pool, chosen in zip(pools, found.selections, strict=True)])
            return float(np.sum(exact[kept].sum(axis=0) ** 2))

        alone = np.mean([judged(exact, 0, run) for run in range(options.runs)])
        print(f"\nset {number}: each alone {alone:.1f}")
        for rounds in options.rounds:
            sides = np.array([[judged(rows, rounds, r) for r in range(options.runs)] for rows in (exact, sketch)])
            logs = np.log(sides[1] / sides[0])  # both sides are left to chance: only logarithms treat them alike
            worse[rounds].append(np.expm1(logs.mean()))
            error = logs.std(ddof=1) / np.sqrt(options.runs)
            means = f"exact {sides[0].mean():7.2f}, sketch {sides[1].mean():7.2f}"
            print(f"  {rounds:2} rounds: {means}   {worse[rounds][-1]:+.1%} ± {error:.1%}", flush=True)
    print("\nall sets (asked: at most +2 %)")
    for rounds, found in worse.items():
        error = np.std(found, ddof=1) / np.sqrt(len(found))
        between = f"{min(found):+.1%} to {max(found):+.1%}"
        print(f"  {rounds:2} rounds: mean {np.mean(found):+.1%} ± {error:.1%}, sets {between}")
    print(f"versions: {versions()}")


if __name__ == "__main__":
    main()
