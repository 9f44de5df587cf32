"""The model and the data: digits of 8 x 8 points, of which new classes arrive in every period."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

CLASSES = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))  # by period


class Net(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3), nn.Linear(256, 10)

    def forward(self, images):
        """Return the logits."""
        return self.last(functional.relu(self.second(functional.relu(self.first(images)))).flatten(1))


def load_data(partition, partitions, period, test=False):
    """Return a client's images and labels of one period; every fifth is for tests."""
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
    numbers = torch.arange(len(labels))
    mine = numbers % partitions == partition
    now = torch.isin(labels, torch.tensor(CLASSES[period]))
    wanted = mine & now & ((numbers // partitions % 5 == 0) == test)
    return {"image": images[wanted], "label": labels[wanted]}


def train(model, data, lr):
    """Go once through the data in batches of 16; return the mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for rows in torch.randperm(len(data["label"])).split(16):
        loss = functional.cross_entropy(model(data["image"][rows]), data["label"][rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses) / len(losses)


def accuracy(model, data):
    """Return the share of labels that are right."""
    with torch.no_grad():
        return float((model(data["image"]).argmax(1) == data["label"]).float().mean())
