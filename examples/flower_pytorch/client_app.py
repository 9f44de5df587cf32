"""A Flower client: trains and measures. What coordinated replay adds is marked."""

from functools import partial  # replay

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import Net, accuracy, load_data, train
from torch.nn import functional  # replay

from coreplay.flower import ReplayBuffer  # replay

app = ClientApp()
torch.set_num_threads(1)


def place(context):
    """Return which part of the data this client has, and of how many."""
    return context.node_config["partition-id"], context.node_config["num-partitions"]


@app.train()
def fit(msg: Message, context: Context):
    """Train the server's model on this client's data."""
    config = msg.content["config"]
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    data = load_data(*place(context), config["period"])
    data = ReplayBuffer(context, budget=30).join(data, config["period"])  # replay
    loss = train(model, data, config["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data["label"])})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def measure(msg: Message, context: Context):
    """Measure the server's model on the test images of all periods so far."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    seen = range(msg.content["config"]["period"] + 1)
    parts = [load_data(*place(context), period, test=True) for period in seen]
    data = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    metrics = {f"accuracy_{period}": accuracy(model, part) for period, part in enumerate(parts)}
    metrics |= {"accuracy": accuracy(model, data), "num-examples": len(data["label"])}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)


def losses(model, data):  # replay
    """Return one loss per sample."""  # replay
    return functional.cross_entropy(model(data["image"]), data["label"], reduction="none")  # replay


@app.query("coreplay")  # replay
def remember(msg: Message, context: Context):  # replay
    """Answer the server's requests about what to keep."""  # replay
    load = partial(load_data, *place(context))  # replay
    return ReplayBuffer(context, budget=30).answer(msg, Net(), losses, load)  # replay
