"""The example in one file is an oracle: `coreplay.run` gives the same numbers as its plain loops."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import coreplay
from coreplay.data import load
from coreplay.tasks import Metric, Task, exponential

FILE = Path(__file__).parents[1] / "examples" / "one_file.py"
plain = SimpleNamespace(**runpy.run_path(str(FILE), run_name="one_file"))
STREAM = {"num_clients": 3, "num_periods": 3, "change": "class_incremental"}


def loss(outputs, batch):
    return torch.nn.functional.cross_entropy(outputs, batch["label"], reduction="none")


@pytest.mark.parametrize("strategy", ["none", "relaxation", "alternating"])
def test_a_run_gives_the_numbers_of_the_plain_loops(strategy, tmp_path):
    config = coreplay.Config.make(
        {
            "seed": plain.SEED,
            "federated": {
                "rounds": plain.ROUNDS,
                "batch_size": plain.BATCH_SIZE,
                "learning_rate": plain.LEARNING_RATE,
                "max_grad_norm": 0,
                "max_weight_ratio": 0,
            },
            "replay": {
                "strategy": strategy,
                "budget": plain.BUDGET,
                "coordination_rounds": plain.COORDINATION_ROUNDS,
            },
            "gradients": {"backend": "factored"},
            "engine": {"name": "serial"},
        }
    )
    stream, metric = load("digits", **STREAM), Metric("perplexity", lower_is_better=True, finish=exponential)
    task = Task.of(plain.new_model, loss, metric=metric)
    found = coreplay.run(config, tmp_path / "run", stream=stream, task=task)
    perplexity, forgetting = plain.run(stream, strategy)
    np.testing.assert_allclose(found.matrix.values, perplexity, rtol=1e-5)
    np.testing.assert_allclose(found.metrics["forgetting"][1:], forgetting, rtol=1e-4)
    assert forgetting[-1] > 1  # there is something to forget, so that other choices would give other numbers


def test_the_example_is_short():
    assert len(FILE.read_text().splitlines()) <= 150
