"""Which clients of a stream take part in a run."""

import numpy as np

from coreplay.data import FederatedStream
from coreplay.errors import InputError
from coreplay.federated.config import StreamConfig
from coreplay.seeding import generator


def sample_clients(stream: FederatedStream, config: StreamConfig) -> FederatedStream:
    """Return the stream of as many clients as the configuration asks for, drawn by its seed."""
    if config.num_clients is None:
        return stream
    if config.num_clients > len(stream.clients):
        raise InputError(f"stream.num_clients = {config.num_clients}: the stream has {len(stream.clients)}")
    rng = generator(config.client_seed, "client sample")
    chosen = rng.choice(len(stream.clients), config.num_clients, replace=False)
    return stream.only([stream.clients[k] for k in np.sort(chosen)])
