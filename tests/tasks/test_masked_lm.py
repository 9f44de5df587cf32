"""Masks and losses of masked language modelling, against transformers' own loss and plain loops."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertForMaskedLM

from coreplay.data import FederatedStream, load
from coreplay.errors import InputError
from coreplay.runtime import Config
from coreplay.tasks import batches, evaluate, make, metric_sum
from coreplay.tasks.bert import load_pretrained
from coreplay.tasks.masked_lm import EVALUATION, mask

SMALL = {"num_layers": 2, "hidden_size": 24, "num_heads": 2, "intermediate_size": 32, "vocabulary_size": 400}


@pytest.fixture(scope="module")
def stream():
    return load("synthetic", num_clients=6, num_periods=2)


@pytest.fixture(scope="module")
def task(stream):
    return make("masked_lm", stream, **SMALL)


def masked(lengths, ids, **more):
    width = max(lengths)
    numbers = np.arange(len(lengths) * width).reshape(-1, width) + 100
    allowed = np.arange(width) < np.array(lengths)[:, None]
    settings = {"view": 0, "share": 0.15, "mask_id": 4, "words": range(5, 90)} | more
    return numbers, allowed, mask(numbers, allowed, np.array(ids, dtype=np.uint64), **settings)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2**64 - 1)), min_size=1, max_size=8), st.floats(0.05, 0.9))
def test_masks_cover_the_share_and_only_allowed_places(rows, share):
    lengths, samples = [row[0] for row in rows], [row[1] for row in rows]
    if not max(lengths):
        return
    numbers, allowed, found = masked(lengths, samples, share=share)
    for k, n in enumerate(lengths):
        real = found.targets[k] != -100
        assert real.sum() == (max(1, math.floor(share * n + 0.5)) if n else 0)
        places = found.positions[k][real]
        assert len(set(places.tolist())) == len(places)
        assert allowed[k, places].all()
        assert (found.targets[k][real] == numbers[k, places]).all()
        untouched = np.setdiff1d(np.arange(len(numbers[k])), places)
        assert (found.ids[k, untouched] == numbers[k, untouched]).all()


def test_masks_do_not_depend_on_the_batch():
    _, _, together = masked([9, 20, 14], [7, 8, 9])
    _, _, alone = masked([14], [9])
    _, _, again = masked([14], [9])
    real = alone.targets[0] != -100
    assert together.positions[2][together.targets[2] != -100].tolist() == alone.positions[0][real].tolist()
    assert again.ids.tolist() == alone.ids.tolist()


def test_masks_are_fixed_numbers():
    """Written down, so that another version, machine or process that masks differently is found out."""
    _, _, found = masked([12, 12], [1, 2**63 + 5], view=2, share=0.3)
    assert found.positions.tolist() == [[3, 6, 8, 11], [0, 1, 3, 10]]
    assert (found.ids != np.arange(24).reshape(2, 12) + 100).sum() == 8
    _, _, found = masked([12, 12], [1, 2**63 + 5], view=EVALUATION, share=0.3)
    assert found.positions.tolist() == [[0, 2, 10, 11], [6, 7, 10, 11]]


def test_masks_change_with_sample_and_view_as_often_as_chance():
    n = 4000
    _, _, base = masked([20] * n, range(n))
    for samples, number in ((range(n), 1), (range(n, 2 * n), 0)):
        _, _, other = masked([20] * n, samples, view=number)
        same = (base.positions == other.positions).all(axis=1).mean()
        assert same < 0.005  # three places of twenty: 1 in 1140
    counts = np.bincount(base.positions.ravel(), minlength=20)
    assert abs(counts / (3 * n) - 1 / 20).max() < 0.006
    shown = np.take_along_axis(base.ids, base.positions, axis=1)
    assert abs((shown == 4).mean() - 0.8) < 0.02
    assert abs((shown == base.targets).mean() - 0.1) < 0.02


def test_evaluation_masks_are_the_same_in_all_runs_and_training_masks_are_not(stream, task):
    samples = stream.of_period(0)[:8]
    for name, tensor in task.collate(samples).items():
        assert torch.equal(tensor, task.collate(samples)[name])
    shown = [
        next(batches(task, samples, 8, seed=seed, epoch=epoch))["targets"].sort(dim=0).values.tolist()
        for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    assert shown[0] == shown[1]
    assert shown[0] != shown[2], "another epoch has other masks"
    assert shown[0] != shown[3], "another seed has other masks"


def test_losses_and_gradients_are_those_of_transformers(stream, task):
    """Though the last layer is computed at the masked places alone."""
    model = task.model(0).eval().double()
    batch = task.collate(stream.of_period(0)[:40], 0)
    labels = torch.full_like(batch["input_ids"], -100)
    for k in range(40):
        for place, target in zip(batch["positions"][k], batch["targets"][k], strict=True):
            if target != -100:
                labels[k, place] = target
    theirs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
    ours = task.loss(model, batch)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    parameters = list(model.parameters())
    for mine, other in zip(*(torch.autograd.grad(loss, parameters) for loss in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)
    assert task.per_sample_loss(model, batch).shape == (40,)
    assert (task.weights(batch) >= 1).all()


def test_the_loss_of_a_sample_does_not_depend_on_the_others(stream, task):
    model = task.model(0).eval().double()
    samples = stream.of_period(0)[:12]
    together = task.per_sample_loss(model, task.collate(samples, 4))
    for k in range(12):
        alone = task.per_sample_loss(model, task.collate(samples[[k]], 4))
        assert alone.item() == pytest.approx(together[k].item(), rel=1e-9)


def test_perplexity_is_the_exponential_of_the_mean_over_masked_pieces(stream, task):
    model = task.model(0)
    samples = stream.of_period(1, "test")
    model.train()
    found = evaluate(task, model, samples, size=7)
    assert model.training
    model.eval()
    batch = task.collate(samples)
    mean = (task.per_sample_loss(model, batch).double().sum() / task.weights(batch).sum()).item()
    assert found == pytest.approx(math.exp(mean), rel=1e-5)
    parts = metric_sum(task, model, samples[:9]) + metric_sum(task, model, samples[9:])
    assert task.metric.figure(parts.mean) == pytest.approx(found, rel=1e-5)
    assert math.isnan(metric_sum(task, model, samples[:0]).mean)


def test_batches_hold_every_sample_once_in_like_lengths(stream, task):
    samples = stream.of_period(0)
    made = list(batches(task, samples, 8, seed=1, epoch=0))
    assert sum(len(batch["input_ids"]) for batch in made) == len(samples)
    cells = sum(batch["input_ids"].numel() for batch in made)
    filled = sum(int(batch["attention_mask"].sum()) for batch in made)
    assert filled / cells > 0.85
    again = list(batches(task, samples, 8, seed=1, epoch=0))
    assert all(torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(made, again, strict=True))
    other = list(batches(task, samples, 8, seed=1, epoch=1))
    assert not all(torch.equal(a["positions"], b["positions"]) for a, b in zip(made, other, strict=True))
    with pytest.raises(InputError, match="batch size"):
        next(batches(task, samples, 0, seed=1, epoch=0))


def test_models_start_alike_for_a_seed_and_leave_the_random_state(task):
    torch.manual_seed(4)
    before = torch.get_rng_state()
    one, two, other = task.model(1), task.model(1), task.model(2)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_tinybert_is_the_default(stream):
    model = make("masked_lm", stream, vocabulary_size=600).model(0)
    config = model.config
    sizes = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.intermediate_size)
    assert sizes == (4, 312, 12, 1200)


def test_a_model_comes_from_a_folder(stream, task, tmp_path, capfd):
    task.model(3).save_pretrained(tmp_path)
    task.vocabulary.save(tmp_path)
    again = make("masked_lm", stream, pretrained=str(tmp_path))
    samples = stream.of_period(0, "test")
    capfd.readouterr()
    again.model(0)
    assert capfd.readouterr() == ("", "")
    assert again.vocabulary.pieces == task.vocabulary.pieces
    assert evaluate(again, again.model(0), samples) == pytest.approx(evaluate(task, task.model(3), samples), rel=1e-6)
    (tmp_path / "words.txt").write_text("\n".join(stream.of_period(0).texts))
    text = make("masked_lm", stream, **SMALL, vocabulary_text=tmp_path / "words.txt")
    assert text.vocabulary.pieces == task.vocabulary.pieces
    larger = make("masked_lm", stream, pretrained=str(tmp_path), vocabulary=large(tmp_path, task))
    with pytest.raises(InputError, match="knows 330 words, the vocabulary has 331"):
        larger.model(0)


def large(folder, task):
    path = folder / "large.txt"
    path.write_text("".join(piece + "\n" for piece in [*task.vocabulary.pieces, "more"]))
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 25}, "hidden_size must be a multiple of num_heads"),
        ({"num_layers": 0}, "num_layers.*: got 0: must be at least 1"),
        ({"mask_probability": 0.0}, "mask_probability.*: got 0.0: must be above 0"),
        ({"max_length": 2}, "max_length.*: got 2: must be at least 3"),
        ({"dropout": 1.0}, "dropout.*: got 1.0: must be below 1"),
        ({"vocabulary_text": "none.txt"}, "vocabulary_text 'none.txt' does not exist"),
        ({"hiden": 3}, "unknown option 'hiden' of task 'masked_lm'"),
        ({"vocabulary": "../vocab.txt"}, "vocabulary '../vocab.txt': there is no such file or folder"),
    ],
)
def test_mistakes_are_explained(stream, options, message):
    with pytest.raises(InputError, match=message):
        make("masked_lm", stream, **SMALL | options)


def test_a_folder_without_a_model_is_named(stream, task, tmp_path):
    task.vocabulary.save(tmp_path)
    with pytest.raises(InputError, match=r"pretrained '.*' can't be loaded from this folder"):
        make("masked_lm", stream, pretrained=str(tmp_path))


def test_a_model_that_is_no_folder_and_no_name_is_not_asked_of_the_network(stream, task, tmp_path):
    task.vocabulary.save(tmp_path / "words")
    with pytest.raises(InputError, match=r"pretrained '.*model': there is no such folder"):
        make("masked_lm", stream, pretrained=str(tmp_path / "model"), vocabulary=str(tmp_path / "words"))


@pytest.fixture(scope="module")
def bert(task, tmp_path_factory):
    """Make a folder with a pretrained model and its vocabulary."""
    folder = tmp_path_factory.mktemp("bert")
    task.model(3).save_pretrained(folder)
    task.vocabulary.save(folder)
    return folder


@pytest.mark.parametrize("kind", ["masked_lm", "text_classification"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_layers", 7),
        ("hidden_size", 24),
        ("num_heads", 2),
        ("intermediate_size", 32),
        ("dropout", 0.2),
        ("vocabulary_size", 300),
    ],
)
def test_options_that_a_pretrained_model_would_ignore_are_refused(stream, bert, kind, option, value):
    with pytest.raises(InputError, match=rf"{option} = {value} has no effect with pretrained = '.*bert.*leave one"):
        make(kind, stream, pretrained=str(bert), **{option: value})


def test_a_pretrained_model_replaces_the_sizes_of_a_preset(stream, bert):
    config = Config.make({"preset": "small"}, {"task.options.pretrained": str(bert)})
    assert config.task.options == {"max_length": 24, "pretrained": str(bert)}
    assert make("masked_lm", stream, **config.task.options).model(0).config.num_hidden_layers == 2
    own = Config.make({"preset": "small", "task": {"options": {"pretrained": str(bert), "num_layers": 7}}})
    with pytest.raises(InputError, match="num_layers = 7 has no effect with pretrained"):
        make("masked_lm", stream, **own.task.options)


@pytest.mark.parametrize("kind", ["masked_lm", "text_classification"])
@pytest.mark.parametrize("model", ["roberta", "gpt2", "llama", "distilbert"])
def test_a_model_of_another_type_is_named_before_its_tokeniser_is_read(stream, tmp_path, kind, model):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model}))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(
        InputError, match=rf"pretrained '.*' is a model of type '{model}'.*supported: bert.*task of your own"
    ):
        make(kind, stream, pretrained=str(tmp_path))


def test_errors_about_the_pretrained_model_name_it(stream, bert, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # the variable is read when it is loaded
    with pytest.raises(InputError, match=r"^pretrained 'nofolder' can't be loaded from this Hub name"):
        make("masked_lm", stream, pretrained="nofolder")
    shutil.copytree(bert, tmp_path / "wordless")
    for name in ("vocab.txt", "tokenizer.json"):
        (tmp_path / "wordless" / name).unlink()
    with pytest.raises(InputError, match=r"^pretrained '.*wordless': the folder has neither"):
        make("masked_lm", stream, pretrained=str(tmp_path / "wordless"))


def test_training_lowers_the_perplexity(stream, task):
    model = task.model(0)
    test = stream.of_period(0, "test")
    before = evaluate(task, model, test)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(0)
    for epoch in range(8):
        for batch in batches(task, stream.of_period(0), 16, seed=0, epoch=epoch):
            optimiser.zero_grad()
            task.loss(model, batch).backward()
            optimiser.step()
    assert evaluate(task, model, test) < 0.8 * before


def test_a_text_without_pieces_has_no_loss_and_no_weight(task):
    odd = FederatedStream(["a", "a"], [0, 0], [False, False], ["\u200b", "stop"])
    batch = task.collate(odd.all())
    losses = task.per_sample_loss(task.model(0).eval(), batch)
    assert sorted((loss.item() > 0, w.item()) for loss, w in zip(losses, task.weights(batch), strict=True))[0] == (
        False,
        0.0,
    )


def test_the_gradient_matrix_takes_the_loss(stream, task):
    gradients = pytest.importorskip("coreplay.gradients")
    model = task.model(0).eval()
    batch = task.collate(stream.of_period(0)[:6], 0)
    gram = gradients.gradient_matrix(model, task.per_sample_loss, batch).gram()
    assert (
        gram == gradients.gradient_matrix(model, task.per_sample_loss, batch, batch_first=task.batch_first).gram()
    ).all()
    assert task.batch_first
    columns = []
    for k in range(6):
        model.zero_grad()
        task.per_sample_loss(model, {name: tensor[[k]] for name, tensor in batch.items()}).sum().backward()
        columns.append(np.concatenate([p.grad.flatten().numpy() for p in model.parameters()]))
    unit = np.stack(columns) / np.linalg.norm(columns, axis=1, keepdims=True)
    np.testing.assert_allclose(gram, unit @ unit.T, atol=1e-4)


def test_code_in_a_model_folder_is_never_run(tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    code = f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
    code += "from transformers import PretrainedConfig\nclass Mine(PretrainedConfig):\n    model_type = 'mine'\n"
    (tmp_path / "code.py").write_text(code)
    about = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(about))
    monkeypatch.setattr("builtins.input", lambda prompt: "y")  # transformers asks, and somebody says yes
    with pytest.raises(InputError, match="can't be loaded from this folder"):
        load_pretrained(BertForMaskedLM, str(tmp_path), 100, 0)
    assert not marker.exists()
