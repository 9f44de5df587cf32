"""Hugging Face `datasets`: a folder on this machine, which needs no network, or a name on the Hub."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coreplay.data.build import build_stream, wanted_columns
from coreplay.data.partition import Clients, Periods
from coreplay.data.readers import Columns, from_table
from coreplay.data.sources import source
from coreplay.data.stream import FederatedStream
from coreplay.errors import InputError


@source("huggingface")
def huggingface(
    *,
    path: str,
    name: str | None = None,
    part: str = "train",
    columns: Columns | Mapping[str, str] | None = None,
    periods: Periods | Mapping[str, Any] | None = None,
    clients: Clients | Mapping[str, Any] | None = None,
    labels: Sequence[str | int] | None = None,
) -> FederatedStream:
    """Take a Hugging Face data set by name or by path, with a column mapping."""
    import datasets

    data = _dataset(str(path), name, part)
    roles = wanted_columns(columns, clients).roles(data.column_names, f"{path}: ")
    raw = from_table(data.with_format("arrow")[:], roles, path)
    label = data.features.get(roles.get("label", ""))
    if isinstance(label, datasets.ClassLabel):
        names = label.names
        raw.columns["label"] = [None if v is None or v < 0 else names[v] for v in raw.columns["label"]]
    return build_stream(raw, periods, clients, labels)


def _dataset(path: str, name: str | None, part: str) -> Any:
    """Load one part of a data set, saved to disk or in any form that `datasets` knows."""
    import datasets

    folder = Path(path)
    if not folder.exists() and not may_be_on_hub(path):
        raise InputError(f"{path}: there is no such file or folder")
    try:
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            data = datasets.load_from_disk(path)
        else:
            data = datasets.load_dataset(path, name)
    except Exception as error:  # `datasets` has no common base for what it raises
        raise InputError(f"{path}: datasets can't load it: {type(error).__name__}: {error}") from None
    if isinstance(data, datasets.DatasetDict):
        if part not in data:
            raise InputError(f"{path}: has no part {part!r}: choose with part= one of {', '.join(data)}")
        data = data[part]
    return data


def may_be_on_hub(place: Path | str) -> bool:
    """Say whether a place that is not on this machine can be a name on the Hub: NAME or OWNER/NAME.

    >>> may_be_on_hub("owner/model-1.0"), may_be_on_hub("../model"), may_be_on_hub("/srv/models/mine")
    (True, False, False)
    """
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", str(place)) is not None
