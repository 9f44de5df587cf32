"""Sources of streams, one per file, and `load`.

A source is a function of keyword options that returns a `FederatedStream`, registered with `source` in a module of
this package or in any module of yours.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from coreplay.data.stream import FederatedStream
from coreplay.registry import Registry

Source = Callable[..., FederatedStream]
_registry: Registry[Source] = Registry("source", "coreplay.data.sources")
source = _registry.register


class DataWarning(UserWarning):
    """Something in the data was skipped or is odd; the message says how often and where first."""


def sources() -> dict[str, str]:
    """Return the names of all sources with a one-line description of each.

    >>> sources()["files"]
    'Read JSON lines or CSV, plain or gzipped, or Parquet, with a column mapping.'
    """
    return _registry.descriptions()


def check_source(name: str, options: Mapping[str, Any], *, complete: bool = True) -> None:
    """Refuse a source or options of one that are not known; if `complete`, also that one it needs is missing."""
    _registry.options(name, options, complete=complete)


def load(name: str, **options: Any) -> FederatedStream:
    """Make a stream from a source; what had to be skipped is in its `notes` and issued as `DataWarning`.

    >>> load("synthetic", num_clients=3, num_periods=2, seed=1)
    FederatedStream(3 clients, 2 periods, 69 train + 12 test samples)
    """
    stream = _registry[name](**_registry.options(name, options))
    for note in stream.notes:
        warnings.warn(note, DataWarning, stacklevel=2)
    return stream
