"""pfl-research in its documented loop: FederatedAveraging on a SimulatedBackend, torchrun for several processes.

Clients' tensors are made once; pfl slices them into batches and keeps the slices. It deals clients to processes by
size.
"""

from typing import Any

import torch

from benchmarks.peers.problem import BATCH, RATE, SEED, Clock, problem
from coreplay.tasks import Batch


def measure(words: int, rounds: int, loss: str) -> Clock:
    """Train, in each of the processes that torchrun started."""
    import numpy as np
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    np.random.seed(SEED)  # noqa: NPY002  pfl's own generators start from it, alike in all processes
    given = problem(words)
    of_batch = given.loss(loss)

    class Module(torch.nn.Module):
        """What pfl wants of a model: a loss and metrics of the columns of a batch."""

        def __init__(self) -> None:
            super().__init__()
            self.bert = given.task.model(SEED)

        def loss(self, *columns: torch.Tensor) -> torch.Tensor:
            self.train()
            return of_batch(self.bert, dict(zip(names, columns, strict=True)))

        @torch.no_grad()
        def metrics(self, *columns: torch.Tensor) -> dict[str, Any]:
            return {"samples": Weighted.from_unweighted(len(columns[0]))}

    class Watch(TrainingProcessCallback[Any]):
        """Takes the time between two rounds; pfl starts the next one right after."""

        def on_train_begin(self, *, model: Any) -> Metrics:
            clock.start()
            return Metrics()

        def after_central_iteration(self, metrics: Metrics, model: Any, *, central_iteration: int) -> Any:
            clock.stop(lambda: model.pytorch_model.bert)
            clock.start()
            return False, Metrics()

    clients = [client for client, _, _ in given.stream.cells()]
    data: dict[str, Batch] = {client: given.data(client, loss) for client in clients}
    names = list(data[clients[0]])
    users = {client: Dataset(tuple(data[client].values()), user_id=client) for client in clients}
    federated = FederatedDataset(
        users.__getitem__, MinimizeReuseUserSampler(clients), {client: len(user) for client, user in users.items()}
    )
    module, clock = Module(), Clock(given)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**6,
            train_cohort_size=len(clients),
            val_cohort_size=None,
        ),
        SimulatedBackend(federated, federated, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=RATE),
        NNEvalHyperParams(local_batch_size=BATCH),
        [Watch()],
        send_metrics_to_platform=False,
    )
    return clock
