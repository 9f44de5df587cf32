"""Each algorithm against a plain loop over numbers; options checked."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coreplay.errors import InputError
from coreplay.learning import Algorithm, RoundInfo, algorithm, make_algorithm
from coreplay.learning.algorithms.fedopt import FedAdam, FedAvgM
from coreplay.learning.algorithms.fedprox import FedProx
from coreplay.learning.hooks import algorithms

NAMES = sorted(name for name in algorithms() if name != "scaffold")  # has tests of its own
INFO = RoundInfo(weight=1, total_weight=1, clients=1, period=0, round=0)


def scalar_update(name: str, w: float, change: float, state: dict[str, float], options: dict[str, float]) -> float:
    """Return the new weight by the formulas of the papers, for one number; changes `state`."""
    if name in ("fedavg", "fedprox"):
        return w + change
    if name == "fedavgm":
        state["v"] = options["momentum"] * state.get("v", 0.0) + change
        return w + options["server_lr"] * state["v"]
    if name == "feddyn":  # everybody answers: `INFO` has one client
        state["h"] = state.get("h", 0.0) - options["alpha"] * change
        return w + change - state["h"] / options["alpha"]
    tau = options["tau"]
    before = state.get("s", tau**2)
    square = {
        "fedadagrad": before + change**2,
        "fedadam": options.get("beta2", 0) * before + (1 - options.get("beta2", 0)) * change**2,
        "fedyogi": before - (1 - options.get("beta2", 0)) * change**2 * math.copysign(1, before - change**2),
    }[name]
    state["m"] = options["beta1"] * state.get("m", 0.0) + (1 - options["beta1"]) * change
    state["s"] = square
    return w + options["server_lr"] * state["m"] / (math.sqrt(square) + tau)


@pytest.mark.parametrize("name", NAMES)
@given(changes=st.lists(st.floats(-1, 1).filter(lambda x: abs(x) > 1e-3), min_size=1, max_size=5))
def test_updates_follow_the_formulas(name, changes):
    made = make_algorithm(name)
    options = dict(vars(made))
    values = np.array([0.5, -2.0])
    state = made.init(values)
    plain: list[dict[str, float]] = [{}, {}]
    expected = values.tolist()
    for change in changes:
        values, state = made.update(values, np.array([change, -change]), {}, state, INFO)
        expected = [
            scalar_update(name, w, c, s, options) for w, c, s in zip(expected, (change, -change), plain, strict=True)
        ]
    np.testing.assert_allclose(values, expected, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_update_leaves_its_arguments_alone(name):
    made = make_algorithm(name)
    values, change = np.ones(3), np.full(3, 0.1)
    state = made.init(values)
    copies = {key: vector.copy() for key, vector in state.items()}
    made.update(values, change, {}, state, INFO)
    assert values.tolist() == [1.0] * 3
    assert change.tolist() == [0.1] * 3
    for key, vector in state.items():
        np.testing.assert_array_equal(vector, copies[key])


def test_the_pull_of_fedprox_is_the_gradient_of_its_term():
    start, now = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.5], requires_grad=True)
    gradient = torch.tensor([0.5, -0.5])
    (0.2 / 2 * (now - start).square().sum()).backward()
    ctx = SimpleNamespace(parameters=now.detach(), start=start)
    moved = make_algorithm("fedprox", {"mu": 0.2}).gradient(ctx, gradient.clone(), None)
    torch.testing.assert_close(moved, gradient + now.grad)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fedagv", {}, "did you mean 'fedavg'"),
        ("fedprox", {"nu": 1}, r"unknown option 'nu' .*known: mu"),
        ("fedprox", {"mu": -1}, "option 'mu' of algorithm 'fedprox': got -1: must be at least 0"),
        ("fedadam", {"server_lr": "fast"}, "'server_lr' .*: got 'fast': must be a number"),
        ("fedadam", {"server_lr": math.nan}, "'server_lr' .*: got nan: must be a finite number"),
    ],
)
def test_wrong_names_and_options_are_named(name, options, words):
    with pytest.raises(InputError, match=words):
        make_algorithm(name, options)


def test_options_are_of_any_type_that_the_dataclass_says():
    @algorithm("typed-options")
    @dataclass(frozen=True, kw_only=True)
    class Typed(Algorithm):
        """Have options of many types."""

        kind: Literal["mean", "median"] = "mean"
        layers: list[str] = None
        trim: float = 0.0
        nesterov: bool = False
        sizes: tuple[int, ...] = ()

        def __post_init__(self):
            if self.trim > 0.5:
                raise ValueError("trim must be at most 0.5")

        def update(self, parameters, change, sums, state, info):
            return parameters + change, state

    given = {"kind": "median", "layers": ["cls", "head"], "trim": -0.1, "nesterov": True, "sizes": [1, 2]}
    made = make_algorithm("typed-options", given)
    assert (made.kind, made.layers, made.trim, made.nesterov, made.sizes) == (
        "median",
        ["cls", "head"],
        -0.1,
        True,
        (1, 2),
    )
    for wrong, words in (
        ({"kind": "mode"}, "'kind' of algorithm 'typed-options': got 'mode'"),
        ({"layers": "cls"}, "'layers' of algorithm 'typed-options': got 'cls'"),
        ({"sizes": ["many"]}, "'sizes' of algorithm 'typed-options'"),
        ({"nesterov": 3}, "'nesterov' .*: got 3: must be true or false"),
        ({"trim": 0.7}, "algorithm 'typed-options': trim must be at most 0.5"),
    ):
        with pytest.raises(InputError, match=words):
            make_algorithm("typed-options", wrong)


@pytest.mark.parametrize("base", [FedProx, FedAvgM, FedAdam])
def test_an_algorithm_made_from_one_of_ours_may_have_options_of_its_own(base):
    @algorithm(f"own-{base.__name__}")
    @dataclass(frozen=True, kw_only=True)
    class Own(base):
        """Have a text and a negative number as options."""

        schedule: str = "cosine"
        shift: float = -1.0

    made = make_algorithm(f"own-{base.__name__}", {"schedule": "linear", "shift": -2})
    assert (made.schedule, made.shift) == ("linear", -2.0)
    known = {FedProx: "mu", FedAvgM: "momentum", FedAdam: "beta2"}[base]
    with pytest.raises(InputError, match=f"option '{known}' of algorithm .*: got -0.1: must be at least 0"):
        make_algorithm(f"own-{base.__name__}", {known: -0.1})
