"""Streams: real and synthetic data over clients and time, by (client, period, split)."""

from coreplay.data.build import build_stream
from coreplay.data.partition import Clients, Periods
from coreplay.data.readers import Columns, RawColumns
from coreplay.data.samples import Samples
from coreplay.data.sources import DataWarning, load, source, sources
from coreplay.data.sources.files import save
from coreplay.data.stream import FederatedStream

__all__ = [
    "Clients",
    "Columns",
    "DataWarning",
    "FederatedStream",
    "Periods",
    "RawColumns",
    "Samples",
    "build_stream",
    "load",
    "save",
    "source",
    "sources",
]
