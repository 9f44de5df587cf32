"""Alternating against a literal Algorithm 1, Theorem 1, and the joint optimum by a general solver."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreplay import coordinate
from coreplay.coordination import Client, Server
from coreplay.errors import InputError
from coreplay.selection import select


def literal(clients, budget, rounds, one_client):
    """Algorithm 1 word for word, with an h_m for each client; return the x of each client by iteration."""
    h = [np.zeros(rows.shape[1]) for rows in clients]
    iterates = []
    for _ in range(rounds + 1):
        x = [one_client(rows @ rows.T, -rows @ h[m], budget) for m, rows in enumerate(clients)]
        sent = [x[m] @ rows for m, rows in enumerate(clients)]
        h = [sent[m] - sum(sent) / len(clients) for m in range(len(clients))]
        iterates.append(x)
    return iterates


def iterate(clients, budget, rounds, **options):
    """Run both halves; return the x of each client by round."""
    machines = [
        Client(str(m), rows, budget, run="r", method="alternating", **options) for m, rows in enumerate(clients)
    ]
    budgets = {machine.name: budget for machine in machines}
    server = Server(budgets, clients[0].shape[1], rounds, run="r", method="alternating", **options)
    contributions = [machine.begin() for machine in machines]
    while True:
        for contribution in contributions:
            assert server.receive(contribution).counted
        word = server.broadcast()
        if server.done:
            break
        contributions = [machine.step(word) for machine in machines]
    xs = [[machine._answers[k] for machine in machines] for k in range(rounds)]
    last = [machine._reply(word) for machine in machines if machine._heed(word) is None]
    return [*xs, last], [machine.finish(word) for machine in machines], server


@pytest.mark.parametrize("seed", range(3))
def test_iterates_equal_those_of_the_paper_s_algorithm(seed, reference):
    clients = reference.draw(seed, dimension=12)
    expected = literal(clients, 3, 5, reference.one_client)
    found, selections, _ = iterate(clients, 3, 5)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=2e-4)
    for kept, x in zip(selections, expected[-1], strict=True):
        assert set(kept) == set(np.argsort(-x, kind="stable")[:3])


@given(seed=st.integers(0, 10_000), budget=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_relaxed_objective_never_increases_and_stays_above_the_joint_optimum(seed, budget):
    from scipy.optimize import minimize

    rng = np.random.default_rng(seed)
    clients = [rng.normal(size=(7, 5)) + 0.4 for _ in range(3)]
    _, _, server = iterate(clients, budget, 8)
    relaxed = [closed.relaxed for closed in server.history]
    assert all(after <= before * (1 + 1e-5) + 1e-6 for before, after in pairwise(relaxed))
    stacked = np.concatenate([rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in clients])
    groups = np.kron(np.eye(3), np.ones(7))
    best = minimize(
        lambda x: np.sum((x @ stacked) ** 2),
        np.full(21, budget / 7),
        jac=lambda x: 2 * stacked @ (x @ stacked),
        bounds=[(0, 1)] * 21,
        constraints={"type": "eq", "fun": lambda x: groups @ x - budget, "jac": lambda x: groups},
        method="SLSQP",
    )
    assert relaxed[-1] >= best.fun * (1 - 1e-4) - 1e-5


@pytest.mark.parametrize("seed", range(2))
def test_converges_to_the_joint_optimum(seed, reference):
    clients = reference.draw(seed, clients=3, pool=6, dimension=8)
    _, best = reference.joint(clients, [2] * 3)
    _, _, server = iterate(clients, 2, 300)
    assert server.history[-1].relaxed == pytest.approx(best, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_theorem_1_the_relaxation_over_h_is_tight(seed, reference):
    """Solve (8) over x and h with Σ h = 0 only: h is then G_m x_m − mean, and the value that of (6)."""
    clients, budget = reference.draw(seed, clients=3, pool=5, dimension=7), 2
    M, n, d = 3, 5, 7
    B = np.zeros((M * d, M * n + M * d))
    for m, rows in enumerate(clients):
        B[m * d : (m + 1) * d, m * n : (m + 1) * n] = rows.T
        B[m * d : (m + 1) * d, M * n + m * d : M * n + (m + 1) * d] = -np.eye(d)
    sums = np.hstack([np.kron(np.eye(M), np.ones(n)), np.zeros((M, M * d))])
    zero = np.hstack([np.zeros((d, M * n)), np.tile(np.eye(d), M)])
    z = reference.solve(2 * M * B.T @ B, np.zeros(B.shape[1]), np.vstack([sums, zero]), [budget] * M + [0.0] * d, M * n)
    x, h = z[: M * n].reshape(M, n), z[M * n :].reshape(M, d)
    shares = np.array([x[m] @ rows for m, rows in enumerate(clients)])
    np.testing.assert_allclose(h, shares - shares.mean(axis=0), atol=1e-4)
    value = M * np.sum((shares - h) ** 2)
    assert value == pytest.approx(np.sum(shares.sum(axis=0) ** 2), rel=1e-5, abs=1e-6)
    assert value == pytest.approx(reference.joint(clients, [budget] * M)[1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("diagonal", "selector"), [("keep", "convex_relaxation"), ("zero", "relaxation")])
def test_zero_rounds_is_the_uncoordinated_selection(diagonal, selector, reference):
    clients = reference.draw(0, pool=12)
    found = coordinate(clients, 4, "alternating", rounds=0, diagonal=diagonal)
    for rows, kept in zip(clients, found.selections, strict=True):
        assert kept.tolist() == select(rows, budget=4, method=selector).tolist()
    assert found.bytes_up == found.bytes_down == 0
    assert found.history == []


def test_unknown_diagonal_is_named():
    with pytest.raises(InputError, match="unknown diagonal 'kep': did you mean 'keep'"):
        coordinate([np.eye(3)], 1, "alternating", diagonal="kep")
