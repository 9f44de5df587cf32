"""Quality of selections made from a sketch with 1000 times fewer numbers, judged by the exact gram.

Beside it, what a dense Gaussian projection to as many numbers would give, as good as can be without a look at the data:
with K = LLᵀ its gram is L W Lᵀ, W Wishart-distributed, so that it need not be carried out.

The words are drawn as in a language (Zipf) and the model has been trained on such samples for a few steps.

Run: python -m benchmarks.gradient_sketch
"""

import numpy as np
import torch

import coreplay
from benchmarks.gradient_models import WORDS, masked_loss, print_versions, tinybert, train_step, utterances

FEWER, STEPS, SEEDS = 1000, 30, 12


def language(n, seed):
    """Return utterances of 5 to 16 words whose frequencies fall as 1 / rank."""
    batch = utterances(n, seed=seed, shortest=5)
    weights = 1.0 / torch.arange(1, WORDS - 4)
    rng = torch.Generator().manual_seed(seed)
    words = 5 + torch.multinomial(weights, batch["input_ids"].numel(), True, generator=rng)
    ids = words.view_as(batch["input_ids"]) * batch["attention_mask"]
    labels = ids.gather(1, batch["places"])
    return {**batch, "input_ids": ids.scatter(1, batch["places"], 4), "labels": labels}


def trained():
    model = tinybert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for step in range(STEPS):
        train_step(model, masked_loss, language(32, 1000 + step))
        optimizer.step()
    return model


def ideal(K, size, seed):
    """Return the cosines after a Gaussian projection to `size` numbers of vectors with gram K."""
    L = np.linalg.cholesky(K.astype(float) + 1e-9 * np.eye(len(K)))
    W = np.random.default_rng(seed).normal(size=(len(K), size))
    gram = L @ (W @ W.T) @ L.T
    scale = np.diag(gram) ** -0.5
    return gram * scale[:, None] * scale


def main():
    print_versions("numpy")
    print("pool, budget; root mean square error of the cosines; objective from exact, sketch, Gaussian, chance")
    model = trained()
    for n, budget in ((50, 5), (64, 20), (256, 20)):
        worse, bound = [], []
        for seed in range(SEEDS):
            batch = language(n, seed)
            exact = coreplay.gradient_matrix(model, masked_loss, batch)
            K, size = exact.gram(), exact.dimension // FEWER
            sketch = coreplay.gradient_matrix(model, masked_loss, batch, "sketch", size=size, seed=seed).gram()
            found = [
                coreplay.objective(gram=K, kept=coreplay.select(gram=gram, budget=budget, method="polished"))
                for gram in (K, sketch, ideal(K, size, seed))
            ]
            rng = np.random.default_rng(seed)
            chance = np.mean([coreplay.objective(gram=K, kept=rng.permutation(n)[:budget]) for _ in range(20)])
            worse.append(found[1] / found[0] - 1)
            bound.append(found[2] / found[0] - 1)
            error = np.sqrt(np.mean((sketch - K) ** 2))
            print(
                f"{n:5} {budget:4}  {error:7.4f}  {found[0]:8.3f} {found[1]:8.3f} {found[2]:8.3f} {chance:8.3f}  "
                f"{100 * worse[-1]:6.2f} % (limit 2 %), Gaussian {100 * bound[-1]:.2f} %",
                flush=True,
            )
        ours, least = (
            f"{100 * np.mean(x):.2f} ± {100 * np.std(x, ddof=1) / len(x) ** 0.5:.2f} %" for x in (worse, bound)
        )
        print(f"{'':10} mean and its standard error: {ours} worse with {size} numbers a sample, Gaussian {least}\n")


if __name__ == "__main__":
    main()
