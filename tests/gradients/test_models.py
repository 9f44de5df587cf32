"""The four models of the specification, in float32 and float64, against the loop."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM

import coreplay


def tinybert(words=400):
    return BertForMaskedLM(
        BertConfig(
            vocab_size=words,
            hidden_size=312,
            num_hidden_layers=4,
            num_attention_heads=12,
            intermediate_size=1200,
            max_position_embeddings=32,
        )
    )


def utterances(n=6, tokens=9, words=400):
    ids = torch.randint(5, words, (n, tokens))
    mask = torch.arange(tokens) < torch.randint(3, tokens + 1, (n, 1))
    ids[~mask] = 0
    masked = (torch.rand(n, tokens) < 0.3) & mask
    masked[1] = False  # a sample without loss: its gradient is zero
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": torch.where(masked, ids, -100)}


def mlm_everywhere(model, batch):
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return functional.cross_entropy(logits.mT, batch["labels"], reduction="none").sum(1)


def mlm_masked(model, batch):
    masked = batch["labels"] != -100
    hidden = model.bert(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])[0]
    losses = functional.cross_entropy(model.cls(hidden[masked]), batch["labels"][masked], reduction="none")
    return losses.new_zeros(len(masked)).index_add(0, masked.nonzero()[:, 0], losses)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 12, padding_idx=0)
        self.lstm = nn.LSTM(12, 16, batch_first=True, num_layers=2)
        self.out = nn.Linear(16, 4)

    def forward(self, ids):
        return self.out(self.lstm(self.words(ids))[0][:, -1])


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(10, 10), nn.Linear(10, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 12, 3, stride=2),
        nn.GroupNorm(3, 12),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(12 * 16, 5),
    )


def cross_entropy(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [mlm_everywhere, mlm_masked])
def test_tinybert_with_tied_weights_and_padding(check, dtype, loss):
    model = tinybert().to(dtype)
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    G = check(model, loss, utterances())
    assert G.norms()[1] == 0
    assert not G.gram()[1].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_convolutional_network(check, dtype):
    batch = torch.randn(7, 3, 9, 9, dtype=dtype), torch.arange(7) % 5
    check(convolutional().to(dtype), cross_entropy, batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lstm_classifier(check, dtype):
    check(Classifier().to(dtype), cross_entropy, (torch.randint(0, 40, (6, 8)), torch.arange(6) % 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layer_applied_twice(check, dtype):
    check(Twice().to(dtype), cross_entropy, (torch.randn(8, 10, dtype=dtype), torch.arange(8) % 3))


def test_masked_rows_that_are_as_many_as_samples_are_not_taken_for_samples(check):
    batch = utterances()
    labels = torch.full_like(batch["labels"], -100)
    labels[0, :3] = batch["input_ids"][0, :3]  # 3 + 0 + 1 + 1 + 1 + 0 masked tokens, 6 samples
    labels[2:5, 1] = batch["input_ids"][2:5, 1]
    check(tinybert().double(), mlm_masked, {**batch, "labels": labels})


@pytest.mark.parametrize(
    ("model", "loss", "batch"),
    [
        (tinybert, mlm_everywhere, utterances),
        (tinybert, mlm_masked, utterances),  # the head's rows are masked positions: no promise holds there
        (convolutional, cross_entropy, lambda: (torch.randn(7, 3, 9, 9).double(), torch.arange(7) % 5)),
        (Classifier, cross_entropy, lambda: (torch.randint(0, 40, (6, 8)), torch.arange(6) % 4)),
        (Twice, cross_entropy, lambda: (torch.randn(8, 10).double(), torch.arange(8) % 3)),
    ],
)
def test_with_the_samples_in_the_first_dimension(check, model, loss, batch):
    check(model().double(), loss, batch(), batch_first=True)


@pytest.mark.parametrize("promise", [False, True])
def test_the_promise_saves_a_backward_pass(promise):
    model, passes = Twice(), []
    model.out.register_full_backward_hook(lambda *_: passes.append(1))
    batch = torch.randn(8, 10), torch.arange(8) % 3
    gram = coreplay.gradient_matrix(model, cross_entropy, batch, batch_first=promise).gram()
    assert len(passes) == (1 if promise else 2)
    assert (gram == coreplay.gradient_matrix(model, cross_entropy, batch).gram()).all()
