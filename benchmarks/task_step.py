"""A TinyBERT training step: last layer and logits at masked places, batches of like length, against transformers' own.

Theirs is the padded loss. A last row has the same batches, with logits at masked places and the last layer everywhere.
Both sides see the same samples with the same masks, 32 a batch, from the same weights, in one run; losses must agree.

    python -m benchmarks.task_step [STREAM.jsonl.gz] [--words 30522]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.common import header, line
from coreplay.data import Samples, load
from coreplay.tasks import Batch, batches
from coreplay.tasks.masked_lm import MaskedLM
from coreplay.tasks.tokenization import Vocabulary, tokenizer, train

BATCH, SAMPLES, REPEATS = 32, 256, 7


def padded(task: MaskedLM, samples: Samples) -> list[Batch]:
    """Return batches in random order as transformers' collator makes them, padded to the longest of the batch."""
    made = []
    for start in range(0, len(samples), BATCH):
        batch = task.collate(samples[start : start + BATCH], 0)
        n, tokens = batch["input_ids"].shape
        labels = torch.full((n, tokens + 1), -100)  # the last column takes the places that are none
        labels.scatter_(1, torch.where(batch["targets"] != -100, batch["positions"], tokens), batch["targets"])
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        made.append(inputs | {"labels": labels[:, :tokens].contiguous()})
    return made


def last_layer_everywhere(model: Any, batch: Batch) -> torch.Tensor:
    """Return the training loss with logits at masked places only, but all of the encoder everywhere."""
    names = ("input_ids", "attention_mask", "position_ids", "token_type_ids")
    hidden = model.bert(**{name: batch[name] for name in names}).last_hidden_state
    places = batch["positions"].unsqueeze(2).expand(-1, -1, hidden.shape[2])
    logits = model.cls(hidden.gather(1, places)).flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, batch["targets"].flatten())


def epoch(model: Any, given: list[Batch], loss: Callable[[Any, Batch], torch.Tensor], optimiser: Any = None) -> None:
    """Take one step a batch; without an optimiser, only up to the gradients."""
    for batch in given:
        model.zero_grad()
        loss(model, batch).backward()
        if optimiser is not None:
            optimiser.step()


def cpu_seconds(steps: list[Callable[[], None]]) -> list[float]:
    """Return the median processor time of each, in turns, on one thread: what else runs hardly counts."""
    times: list[list[float]] = [[] for _ in steps]
    for repeat in range(REPEATS + 1):
        for step, seconds in zip(steps, times, strict=True):
            began = time.perf_counter()
            step()
            if repeat:  # the first is for warming up
                seconds.append(time.perf_counter() - began)
    return [statistics.median(seconds) for seconds in times]


def mean_loss(model: Any, given: list[Batch], loss: Callable[[Any, Batch], torch.Tensor]) -> float:
    """Return the mean over all masked places; `loss` is the mean over those of a batch."""
    places = [int((batch.get("targets", batch.get("labels")) != -100).sum()) for batch in given]
    with torch.no_grad():
        return sum(float(loss(model, b)) * n for b, n in zip(given, places, strict=True)) / sum(places)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream", nargs="?")
    parser.add_argument("--words", type=int, default=30_522)
    given = parser.parse_args()
    torch.set_num_threads(1)
    header("torch", "transformers", "tokenizers")
    stream = load("files", path=given.stream) if given.stream else load("synthetic", seed=1)
    first = stream.of_period(0)
    pieces = train(first.texts, given.words)
    pieces += [f"[unused{k}]" for k in range(given.words - len(pieces))]
    task = MaskedLM(None, vocabulary=Vocabulary(tokenizer(pieces)), dropout=0.0)
    order = torch.randperm(len(first), generator=torch.Generator().manual_seed(0))[:SAMPLES].numpy()
    samples = first[order]
    lengths = task.lengths(samples)
    print(
        f"{len(samples)} samples, {lengths.mean():.1f} pieces on average, {lengths.max()} at most; {given.words} words"
    )
    ours = list(batches(task, samples, BATCH, seed=0, epoch=0))
    theirs = padded(task, samples)
    mine, other = task.model(0).eval(), task.model(0).eval()
    sides = ((mine, ours, task.loss), (other, theirs, lambda model, batch: model(**batch).loss))
    found = [mean_loss(*side) for side in sides]
    adam = [torch.optim.AdamW(side[0].parameters(), lr=0.0, weight_decay=0.0, fused=True) for side in sides]
    for name, optimisers in (("loss and gradients", [None, None]), ("with a fused AdamW step", adam)):
        steps = [partial(epoch, *side, optimiser=chosen) for side, chosen in zip(sides, optimisers, strict=True)]
        a, b = cpu_seconds(steps)
        line(name, a / len(ours), b / len(theirs), ">= 3x", f"losses {found[0]:.6f}, {found[1]:.6f}")
    before = (other, ours, last_layer_everywhere)
    a, b = cpu_seconds([partial(epoch, *side) for side in (sides[0], before)])
    line(
        "the last layer at masked places only",
        a / len(ours),
        b / len(ours),
        "-",
        f"losses {found[0]:.6f}, {mean_loss(*before):.6f}",
    )


if __name__ == "__main__":
    main()
