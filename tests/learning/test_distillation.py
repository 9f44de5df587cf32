"""Distillation for a language model, whose outputs have one row per masked position."""

import pytest
import torch
from tests.learning.test_der import TEXTS

import coreplay
from coreplay.learning import FlatModel, Methods, Step, Turn
from coreplay.learning.training import contexts
from coreplay.runtime import prepare


@pytest.mark.parametrize("teacher", ["period_start", "both"])
def test_distillation_of_a_language_model_where_the_teacher_is_better_by_hand(teacher):
    """KL position by position, of samples whose summed loss is lower with the teacher."""
    texts = prepare(coreplay.Config.make(TEXTS))
    samples = texts.stream.samples(texts.stream.clients[0], 0)[:6]
    task, flat, other = texts.task, FlatModel(texts.task.model(0)), FlatModel(texts.task.model(1))
    for model in (flat.model, other.model):
        model.eval()
    methods = Methods("fedavg", {}, {"distillation": {"where": "better", "teacher": teacher}})
    about = (methods, flat, task, samples, coreplay.Config.make(TEXTS).federated, Turn(0, "c", 1, 0))
    ctx = contexts(*about, period_model=other.values)["distillation"]
    batch = task.collate(samples, 3)
    outputs = task.outputs(flat.model, batch)
    step = Step(samples, batch, outputs, task.losses(outputs, batch), task.weights(batch))
    taught = task.outputs(other.model, batch).detach()
    better = task.losses(taught, batch) < step.losses
    assert 0 < int(better.sum()) < 6, "or the test shows nothing"
    expected = 0.0
    for row, owner in enumerate(task.output_rows(batch).tolist()):
        p, q = (torch.softmax(each[row], dim=0) for each in (taught, outputs))
        expected += float((better[owner] * (p * (p / q).log()).sum()).detach()) / len(outputs)
    assert float(methods.hooks["distillation"].loss(ctx, step).detach()) == pytest.approx(expected, rel=1e-4)
