"""The method of the paper, from top to bottom, in plain NumPy and PyTorch.

Clients receive data period after period. In every period they train one model by federated averaging, each on its
pool: the new samples and the few that it kept. Then each client chooses `BUDGET` samples of its pool to keep, by the
gradients of their losses: alone (`relaxation`) or jointly (`alternating`, the paper's Algorithm 1).

The library is used only for the data, the random numbers, `select` and the solver of the quadratic programme. A test
checks that `coreplay.run` gives the same numbers.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from coreplay import select
from coreplay.data import load
from coreplay.seeding import generator
from coreplay.selection import minimise

SEED, ROUNDS, BATCH_SIZE, LEARNING_RATE = 0, 3, 16, 0.2
BUDGET, COORDINATION_ROUNDS = 4, 3


# ---- The model and its loss ----


def new_model():
    """Return a small network for 8 x 8 images of digits."""
    torch.manual_seed(int(generator(SEED, "model").integers(2**62)))
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def losses(model, samples):
    """Return −log p of the right label, one number per sample."""
    images, labels = samples
    return functional.cross_entropy(model(torch.from_numpy(images)), torch.from_numpy(labels), reduction="none")


def vector(model):
    """Return the weights of a model as one vector."""
    return nn.utils.parameters_to_vector(model.parameters()).detach()


# ---- Federated averaging ----


def train(model, start, pool, client, period, round):
    """Train from `start` on the pool, once through it in random batches; return the change of the weights."""
    nn.utils.vector_to_parameters(start.clone(), model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    order_seed = int(generator(SEED, client, period, "training", round).integers(2**62))
    rng = generator(order_seed, "batches", period * ROUNDS + round)
    order = rng.permutation(len(pool[1]))
    batches = [order[k : k + BATCH_SIZE] for k in range(0, len(order), BATCH_SIZE)]
    for k in rng.permutation(len(batches)):
        optimizer.zero_grad()
        losses(model, rows(pool, batches[k])).mean().backward()
        optimizer.step()
    return vector(model) - start


def average(model, start, pools, period):
    """Do the rounds of a period: every client trains, and the mean of the changes, by samples, is added."""
    for round in range(ROUNDS):
        changes = {client: train(model, start, pool, client, period, round) for client, pool in pools.items()}
        sizes = {client: len(pool[1]) for client, pool in pools.items()}
        start = start + sum(sizes[client] * changes[client] for client in pools) / sum(sizes.values())
    nn.utils.vector_to_parameters(start.clone(), model.parameters())
    return start


# ---- What to keep ----


def gradients(model, pool):
    """Return G_mᵀ, the unit gradients of a pool, one row per sample."""
    found = []
    for i in range(len(pool[1])):
        parts = torch.autograd.grad(losses(model, rows(pool, [i])).sum(), list(model.parameters()))
        found.append(torch.cat([part.flatten() for part in parts]).numpy())
    return np.stack([g / np.linalg.norm(g) for g in found])


def alone(G, period):
    """Let each client minimise xᵀGᵀGx, diagonal zeroed, 0 <= x <= 1, Σx = N, and keep the N largest x (section 4.2)."""
    return {
        client: select(g, budget=BUDGET, method="relaxation", seed=generator(SEED, client, period, "selection"))
        for client, g in G.items()
    }


def jointly(G, period):
    """Let the clients minimise ‖Σ_m G_m x_m‖² together (Algorithm 1) and keep the N largest x_m each."""
    gram = {client: (g @ g.T).astype(np.float64) for client, g in G.items()}
    x = {client: minimise(gram[client], BUDGET).x for client in G}
    for _ in range(COORDINATION_ROUNDS):
        mean = sum(x[client] @ G[client] for client in G) / len(G)  # the server's part: all that clients need of it
        for client, g in G.items():
            linear = g @ mean - gram[client] @ x[client]  # −G_mᵀh_m with h_m = G_m x_m − mean
            x[client] = minimise(gram[client], BUDGET, linear=linear, start=x[client]).x
    return {client: np.sort(np.argsort(-x[client], kind="stable")[:BUDGET]) for client in G}


# ---- The stream and the run ----


def rows(samples, which):
    """Return some rows of samples, which are a pair of arrays: images and labels."""
    return samples[0][which], samples[1][which]


def joined(parts):
    """Return several sets of samples as one."""
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def samples_of(stream, client, period, split="train"):
    """Return a client's samples of a period."""
    found = stream.samples(client, period, split)
    return np.ascontiguousarray(found.content, dtype=np.float32), found.label


def run(stream, strategy):
    """Return the perplexity a[t, t'] of the model after period t on test period t', and the forgetting after each t."""
    model = new_model()
    weights, buffers, perplexity = vector(model), {}, []
    tests = [joined([samples_of(stream, c, t, "test") for c in stream.clients]) for t in range(stream.periods)]
    for period in range(stream.periods):
        new = {client: samples_of(stream, client, period) for client in stream.clients}
        pools = {c: joined([new[c], buffers[c]]) if c in buffers else new[c] for c in new if len(new[c][1])}
        weights = average(model, weights, pools, period)
        with torch.no_grad():
            perplexity.append([float(losses(model, test).mean().exp()) for test in tests])
        if strategy != "none" and period + 1 < stream.periods:
            G = {client: gradients(model, pool) for client, pool in pools.items() if len(pool[1]) > BUDGET}
            kept = {"relaxation": alone, "alternating": jointly}[strategy](G, period)
            buffers |= {client: rows(pool, kept.get(client, slice(None))) for client, pool in pools.items()}
    a = np.array(perplexity)
    forgetting = [np.mean(a[t, :t] - a[:t, :t].min(axis=0)) for t in range(1, stream.periods)]
    return a, np.array(forgetting)


if __name__ == "__main__":
    digits = load("digits", num_clients=4, num_periods=3, change="class_incremental")
    for name in ("none", "relaxation", "alternating"):
        a, forgetting = run(digits, name)
        print(f"{name:<12} perplexity per period {a[-1].round(3)}, forgetting {forgetting[-1]:.3f}")
