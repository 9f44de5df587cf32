"""A task of your own, with your module and your loss: how many words a text has, from its pairs of letters."""

from itertools import pairwise

import torch
from torch import nn

from coreplay.data import load
from coreplay.tasks import Metric, Task, batches, evaluate


class WordCount(Task):
    """Predict the number of words from hashed pairs of letters."""

    metric = Metric("squared error", lower_is_better=True)

    def model(self, seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 1))

    def collate(self, samples, view=None):
        bags = torch.zeros(len(samples), 256)
        for bag, text in zip(bags, samples.texts, strict=True):
            for a, b in pairwise(text):
                bag[(31 * ord(a) + ord(b)) % 256] += 1
        return {"bag": bags, "words": torch.tensor([float(len(text.split())) for text in samples.texts])}

    def outputs(self, model, batch):
        return model(batch["bag"]).squeeze(1)

    def losses(self, outputs, batch):
        return (outputs - batch["words"]).square()


if __name__ == "__main__":
    stream, task = load("synthetic", num_clients=10, num_periods=2), WordCount()
    model = task.model(seed=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    print(f"{task.metric.name} before: {evaluate(task, model, stream.of_period(1, 'test')):.2f}")
    for epoch in range(10):
        for batch in batches(task, stream.of_period(0), 16, seed=0, epoch=epoch):
            optimiser.zero_grad()
            task.loss(model, batch).backward()
            optimiser.step()
    print(f"{task.metric.name} after: {evaluate(task, model, stream.of_period(1, 'test')):.2f}")
