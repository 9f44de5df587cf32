"""Clients: from a column, or dealt out by label; limits on what each holds, and who has too little."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coreplay.data.samples import Ints
from coreplay.errors import InputError, unknown
from coreplay.seeding import generator

KINDS = ("column", "dirichlet", "pathological", "iid")


@dataclass(frozen=True)
class Clients:
    """Who holds which rows, and how many.

    Parameters
    ----------
    by : str
        "column"; or a partitioner of flwr-datasets over the label: "dirichlet", "pathological" or "iid".
    number : int
        How many clients a partitioner makes.
    alpha : float
        The concentration of "dirichlet": the smaller, the more clients differ.
    labels_per_client : int
        The number of labels per client of "pathological".
    min_samples : int
        Clients with fewer training samples in all are left out and reported.
    max_samples : int, optional
        The largest number of training samples per client and period, chosen at random. The same limit holds for
        test rows.
    max_test_samples : int, optional
        A separate limit for the test rows.
    max_clients : int, optional
        The largest number of clients, chosen at random.
    seed : int
        The seed of these random choices.
    """

    by: str = "column"
    number: int = 100
    alpha: float = 0.5
    labels_per_client: int = 2
    min_samples: int = 1
    max_samples: int | None = None
    max_test_samples: int | None = None
    max_clients: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.by not in KINDS:
            raise unknown("way to make clients", self.by, KINDS)
        for name in ("number", "labels_per_client", "max_samples", "max_test_samples", "max_clients"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1: got {value}")
        if self.min_samples < 0:
            raise InputError(f"min_samples must be at least 0: got {self.min_samples}")
        if not 0 < self.alpha < math.inf:
            raise InputError(
                f"alpha must be above 0 and finite: got {self.alpha}; for clients that are alike use by='iid'"
            )


def partition(labels: Sequence[str | None], rule: Clients) -> list[str]:
    """Deal rows out to `rule.number` clients by their label, with flwr-datasets' partitioners.

    A row whose label no client was given ("pathological") belongs to nobody: its client is "".
    """
    import datasets
    from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner, PathologicalPartitioner

    n = rule.number
    if len(labels) < n:
        raise InputError(f"number of clients must be at most the number of rows: got {n} for {len(labels)} rows")
    kinds = len(set(labels))
    if rule.by == "pathological" and rule.labels_per_client > kinds:
        raise InputError(
            f"labels_per_client must be at most the number of labels: got {rule.labels_per_client} for {kinds} labels"
        )
    seed = int(generator(rule.seed, "partition").integers(2**31))
    if rule.by == "iid":
        partitioner: Any = IidPartitioner(n)
    elif rule.by == "dirichlet":
        partitioner = DirichletPartitioner(n, "label", rule.alpha, min_partition_size=0, seed=seed)
    else:
        partitioner = PathologicalPartitioner(n, "label", rule.labels_per_client, seed=seed)
    order = generator(rule.seed, "partition rows").permutation(len(labels))
    columns = {"label": [str(labels[k]) for k in order], "row": order}
    partitioner.dataset = datasets.Dataset.from_dict(columns)
    owner = np.full(len(labels), -1, dtype=np.int64)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Classes: .* will NOT be used")  # the stream's notes say how many rows
            partitioner.load_partition(0)
        for k in range(n):
            owner[partitioner.load_partition(k).with_format("numpy")["row"][:]] = k
    except ValueError as error:
        raise InputError(f"clients by {rule.by} can't be dealt out ({error}): use fewer, or other labels") from None
    width = len(str(n - 1))
    return [f"client{k:0{width}d}" if k >= 0 else "" for k in owner]


def limited(client: Sequence[str], period: Ints, test: NDArray[np.bool_], rule: Clients) -> tuple[Ints, list[str]]:
    """Return the rows that the limits leave, in their order, and a note of every client that they cost."""
    names, who = np.unique(np.asarray(client, dtype=object), return_inverse=True)
    kept = np.ones(len(who), dtype=bool)
    notes = []
    if rule.max_samples is not None or rule.max_test_samples is not None:
        most = len(who) if rule.max_samples is None else rule.max_samples
        most_test = most if rule.max_test_samples is None else rule.max_test_samples
        cell = (who * (int(period.max()) + 1) + period) * 2 + test
        draw = np.lexsort((generator(rule.seed, "limit").random(len(who)), cell))
        ranks = np.empty(len(who), dtype=np.int64)
        ranks[draw] = np.arange(len(who)) - np.searchsorted(cell[draw], cell[draw])
        kept &= ranks < np.where(test, most_test, most)
        if not kept.all():
            limits = {"max_samples": rule.max_samples, "max_test_samples": rule.max_test_samples}
            above = ", ".join(f"{name}={limit}" for name, limit in limits.items() if limit is not None)
            notes.append(f"{int((~kept).sum())} rows above {above} per client, period and split: left out")
    sizes = np.bincount(who[kept & ~test], minlength=len(names))
    small = np.flatnonzero(sizes < rule.min_samples)
    if len(small):
        rows = int(np.isin(who, small).sum())
        some = ", ".join(repr(str(names[k])) for k in small[:3]) + (", ..." if len(small) > 3 else "")
        notes.append(
            f"{len(small)} of {len(names)} clients have fewer than {rule.min_samples} training samples ({some}): "
            f"left out with their {rows} rows"
        )
        kept &= ~np.isin(who, small)
    stay = np.flatnonzero(sizes >= rule.min_samples)
    if rule.max_clients is not None and len(stay) > rule.max_clients:
        chosen = generator(rule.seed, "keep").choice(stay, size=rule.max_clients, replace=False)
        notes.append(f"{rule.max_clients} of {len(stay)} clients chosen at random (max_clients={rule.max_clients})")
        kept &= np.isin(who, chosen)
    return np.flatnonzero(kept), notes
