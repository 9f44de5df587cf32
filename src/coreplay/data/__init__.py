"""Streams: real and synthetic data over clients and time, by (client, period, split)."""

from coreplay.data.api import load, source, sources
from coreplay.data.clients import Clients
from coreplay.data.columns import Columns
from coreplay.data.notes import DataWarning
from coreplay.data.periods import Periods
from coreplay.data.samples import Samples
from coreplay.data.store import save
from coreplay.data.stream import FederatedStream

__all__ = [
    "Clients",
    "Columns",
    "DataWarning",
    "FederatedStream",
    "Periods",
    "Samples",
    "load",
    "save",
    "source",
    "sources",
]
