"""A Flower server: federated averaging, period after period. What coordinated replay adds is marked."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from task import CLASSES, Net

from coreplay.engines.flower import choose_jointly  # replay

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train over all periods and print the accuracies after the last."""
    config = {"rounds": 6, "lr": 0.1} | dict(context.run_config)
    arrays = ArrayRecord(Net().state_dict())
    for period in range(len(CLASSES)):
        about = ConfigRecord({"lr": config["lr"], "period": period})
        result = FedAvg(min_available_nodes=2).start(
            grid, arrays, num_rounds=config["rounds"], train_config=about, evaluate_config=about
        )
        arrays = result.arrays
        choice = choose_jointly(grid, arrays, period=period)  # replay
        print(f"period {period}: kept {sum(choice.kept.values())} samples", flush=True)  # replay
    found = dict(result.evaluate_metrics_clientapp[config["rounds"]])
    print("accuracy", {name: round(value, 3) for name, value in sorted(found.items())}, flush=True)
