"""What the gradient benchmarks share: models, pools, losses, timing."""

import platform
import statistics
import time
from importlib.metadata import version

import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM

WORDS, TOKENS, MASKED = 30_522, 16, 2


def print_versions(*packages):
    found = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", *packages))
    print(f"# python {platform.python_version()}, {found}; {torch.get_num_threads()} threads\n")


def tinybert(words=WORDS, dtype=torch.float32):
    """TinyBERT: 4 layers, hidden 312, 12 heads, feed-forward 1200, tied decoder."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=words, hidden_size=312, num_hidden_layers=4, num_attention_heads=12, intermediate_size=1200
    )
    return BertForMaskedLM(config).to(dtype).eval()


def utterances(n, words=WORDS, tokens=TOKENS, seed=0, shortest=None):
    """Random token ids with two masked positions a sample; padded if `shortest` is below `tokens`."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, words, (n, tokens), generator=rng)
    lengths = torch.randint(shortest or tokens, tokens + 1, (n, 1), generator=rng)
    mask = torch.arange(tokens) < lengths
    ids[~mask] = 0
    noise = torch.rand(n, tokens, generator=rng).masked_fill(~mask, 2.0)
    places = noise.argsort(1)[:, :MASKED]
    return {
        "input_ids": ids,
        "attention_mask": mask.long(),
        "token_type_ids": torch.zeros_like(ids),
        "position_ids": torch.arange(tokens).repeat(n, 1),
        "places": places,
        "labels": ids.gather(1, places),
    }


def _encode(model, batch):
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    return model.bert(**{name: batch[name] for name in names})[0]


def masked_loss(model, batch):
    """Cross-entropy with logits at the masked positions only."""
    hidden = _encode(model, batch)
    places = batch["places"].unsqueeze(2).expand(-1, -1, hidden.shape[2])
    logits = model.cls(hidden.gather(1, places))
    return functional.cross_entropy(logits.mT, batch["labels"], reduction="none").sum(1)


def full_loss(model, batch):
    """Compute the same loss with logits at all positions, as the Hugging Face model does."""
    logits = model.cls(_encode(model, batch))
    labels = torch.full_like(batch["input_ids"], -100).scatter(1, batch["places"], batch["labels"])
    return functional.cross_entropy(logits.mT, labels, reduction="none").sum(1)


def train_step(model, loss, batch):
    """One forward and backward pass, gradients of all parameters included."""
    model.zero_grad(set_to_none=True)
    loss(model, batch).mean().backward()


class LSTMClassifier(nn.Module):
    """Embedding, LSTM, linear layer on the last state."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1000, 64, padding_idx=0)
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.out = nn.Linear(128, 10)

    def forward(self, ids):
        """Return class scores."""
        return self.out(self.lstm(self.words(ids))[0][:, -1])


class Twice(nn.Module):
    """A network that applies one layer twice."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        """Return class scores."""
        return self.out(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


def cnn():
    """Two convolutions with GroupNorm."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(32 * 16 * 16, 10),
    )


def cross_entropy(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def interleaved(tasks, repeats, again=False):
    """Return the median seconds of each task; tasks take turns, so that a busy machine slows all alike.

    `again` lets each task run twice a turn and times the second: where others leave gigabytes of freed memory behind,
    the first pays for getting its own from the system.
    """
    times = {name: [] for name in tasks}
    for task in tasks.values():
        task()  # warm up
    for _ in range(repeats):
        for name, task in tasks.items():
            if again:
                task()
            start = time.perf_counter()
            task()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}
