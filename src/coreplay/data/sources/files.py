"""Files that somebody has: JSON lines, CSV, Parquet."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coreplay.data.build import build_stream, wanted_columns
from coreplay.data.partition import Clients
from coreplay.data.periods import Periods
from coreplay.data.readers import LONGEST, Columns, read_files
from coreplay.data.sources import source
from coreplay.data.store import holds_arrays, is_saved, load_saved
from coreplay.data.stream import FederatedStream
from coreplay.errors import InputError


@source("files")
def files(
    *,
    path: Path | str | Sequence[Path | str],
    columns: Columns | Mapping[str, str] | None = None,
    periods: Periods | Mapping[str, Any] | None = None,
    clients: Clients | Mapping[str, Any] | None = None,
    duplicates: str = "skip",
    labels: Sequence[str | int] | None = None,
    longest_line: int = LONGEST,
) -> FederatedStream:
    """Read JSON lines or CSV, plain or gzipped, or Parquet, with a column mapping."""
    several = path if isinstance(path, Sequence) and not isinstance(path, str) else [path]
    paths = [Path(one) for one in several]
    if len(paths) == 1 and not (columns or periods or clients) and labels is None and is_saved(paths[0]):
        return load_saved(paths[0])
    arrays = [one for one in paths if is_saved(one) and holds_arrays(one)]
    if arrays:
        raise InputError(
            f"{arrays[0]}: is a saved stream of arrays, which is used alone and as it is: leave the options out here, "
            "and choose labels, clients and periods where the stream is made"
        )
    raw = read_files(paths, wanted_columns(columns, clients), longest_line)
    return build_stream(raw, periods, clients, duplicates, labels)
