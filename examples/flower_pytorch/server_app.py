"""A Flower server: federated averaging, period after period. What coordinated replay adds is marked."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from task import Net

from coreplay.flower import choose_jointly, next_period  # replay

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Go on with the first period that was not chosen yet, and print the accuracies after the last one there is."""
    config = context.run_config
    model = Path(str(config["model"]))
    begun = next_period(grid, clients=2)  # replay
    net = Net()
    if begun:
        net.load_state_dict(torch.load(model))
    arrays = ArrayRecord(net.state_dict())
    for period in range(begun, config["periods"]):
        about = ConfigRecord({"lr": config["lr"], "period": period})
        result = FedAvg(min_available_nodes=2).start(
            grid, arrays, num_rounds=config["rounds"], train_config=about, evaluate_config=about
        )
        arrays = result.arrays
        torch.save(arrays.to_torch_state_dict(), model)
        choice = choose_jointly(grid, arrays, period=period)  # replay
        print(f"period {period}: kept {sum(choice.kept.values())} samples", flush=True)  # replay
        found = dict(result.evaluate_metrics_clientapp[config["rounds"]])
        print("accuracy", {name: round(value, 3) for name, value in sorted(found.items())}, flush=True)
