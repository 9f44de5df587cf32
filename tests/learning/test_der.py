"""Outputs that are stored with kept samples, for language models too, and after a resume."""

import numpy as np
import pytest
import torch
from tests.learning.test_continual import DIGITS

import coreplay
from coreplay.learning import FlatModel, Methods, Step, Turn
from coreplay.learning.continual.der import VIEW
from coreplay.learning.training import contexts
from coreplay.replay import Store
from coreplay.replay.contents import samples_of
from coreplay.runtime import prepare

TEXTS = {
    "preset": "small",
    "stream": {"options": {"num_clients": 3, "num_periods": 2}},
    "task": {
        "options": {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "vocabulary_size": 200}
    },
    "federated": {"rounds": 1, "optimizer": "sgd", "learning_rate": 0.5},
    "replay": {"strategy": "naive_uniform", "budget": 5},
    "engine": {"name": "serial"},
}


@pytest.fixture(scope="module")
def texts():
    return prepare(coreplay.Config.make(TEXTS))


def kept_by(folder, things, client):
    with Store.open(folder / "buffers.sqlite") as store:
        return samples_of(store.load(client).items, things.stream.samples(client, 0))


def der_context(things, pool, options, period=1):
    flat = FlatModel(things.task.model(0))
    methods = Methods("fedavg", {}, {"der": options})
    settings = coreplay.Config.make(TEXTS).federated
    return methods.hooks["der"], contexts(methods, flat, things.task, pool, settings, Turn(0, "c", period, 0))["der"]


def test_der_stores_the_largest_log_probabilities_of_a_language_model(texts, tmp_path):
    changes = {"continual.methods": ["der_pp"], "continual.options": {"der_pp": {"top_k": 7}}}
    coreplay.run(coreplay.Config.make(TEXTS, changes), tmp_path / "run", prepared=texts)
    client = texts.stream.clients[0]
    kept = kept_by(tmp_path / "run", texts, client)
    positions = int(texts.task.largest_weight())
    pieces, log_probabilities = kept.extras["der_pieces"], kept.extras["der_log_probabilities"]
    assert pieces.shape == log_probabilities.shape == (5, positions, 7)
    stored = pieces[0].nbytes + log_probabilities[0].nbytes
    assert stored == 8 * 7 * positions, "the bytes per sample that the docs state"
    for k in range(5):
        n = int(texts.task.weights(texts.task.collate(kept[[k]], VIEW))[0])
        assert np.isfinite(pieces[k, :n]).all()
        assert np.isnan(pieces[k, n:]).all()
        assert (np.diff(log_probabilities[k, :n], axis=1) <= 0).all(), "the largest first"


def test_the_distance_to_stored_log_probabilities_by_hand(texts):
    """KL over the stored pieces and the rest, position by position; 0 for the model that stored them."""
    client = texts.stream.clients[0]
    samples = texts.stream.samples(client, 0)[:6]
    hook, ctx = der_context(texts, samples, {"top_k": 5, "alpha": 2.0, "beta": 1.0})
    ctx.model.eval()  # without dropout, as the outputs are stored
    stored = hook.keep(ctx, samples)

    def loss():
        batch = texts.task.collate(stored, 3)
        outputs = texts.task.outputs(ctx.model, batch)
        step = Step(stored, batch, outputs, texts.task.losses(outputs, batch), texts.task.weights(batch))
        return float(hook.loss(ctx, step).detach())

    assert loss() == pytest.approx(0, abs=1e-5)
    with torch.no_grad():
        ctx.flat.values += 0.1 * torch.randn(ctx.flat.size, generator=torch.Generator().manual_seed(0))
    batch = texts.task.collate(stored, VIEW)
    probabilities = torch.softmax(texts.task.outputs(ctx.model, batch), dim=1).detach().double()
    owners = texts.task.output_rows(batch).tolist()
    terms, position = [], 0
    for row, owner in enumerate(owners):
        position = position + 1 if row and owners[row - 1] == owner else 0
        p = np.exp(stored.extras["der_log_probabilities"][owner, position].astype(float))
        q = probabilities[row, stored.extras["der_pieces"][owner, position].astype(int)].numpy()
        p, q = np.append(p, 1 - p.sum()), np.append(q, 1 - q.sum())
        terms.append((p * np.log(p / q)).sum())
    assert loss() == pytest.approx(2.0 * np.mean(terms), rel=1e-4)


@pytest.fixture(scope="module")
def things():
    return prepare(coreplay.Config.make(DIGITS))


def test_stored_outputs_are_those_of_the_period_in_which_a_sample_was_kept(things, tmp_path):
    """And they are the same to the bit after a kill and a resume."""
    changes = {"continual.methods": ["der"], "replay.budget": 200, "engine.checkpoint_seconds": 0}
    settings = coreplay.Config.make(DIGITS, changes)
    coreplay.run(settings, tmp_path / "whole", prepared=things)

    def stop(event):
        if (event.kind, event.period, event.round) == ("round", 1, 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coreplay.run(settings, tmp_path / "cut", prepared=things, observer=stop)
    client = things.stream.clients[0]
    first = kept_by(tmp_path / "cut", things, client)
    coreplay.run(settings, tmp_path / "cut", prepared=things, resume=True)
    whole, cut = (kept_by(tmp_path / name, things, client) for name in ("whole", "cut"))
    np.testing.assert_array_equal(whole.extras["der_logits"], cut.extras["der_logits"])
    stored = dict(zip(first.ids.tolist(), first.extras["der_logits"], strict=True))
    old = [k for k in range(len(cut)) if cut.arrived[k] == 0]
    assert old
    for k in old:
        np.testing.assert_array_equal(cut.extras["der_logits"][k], stored[int(cut.ids[k])])
