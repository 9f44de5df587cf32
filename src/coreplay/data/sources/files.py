"""Files: JSON lines, CSV and Parquet of any kind, and streams saved in one Parquet file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coreplay.data.build import build_stream, wanted_columns
from coreplay.data.partition import Clients, Periods
from coreplay.data.readers import Columns, read_files
from coreplay.data.sources import source
from coreplay.data.stream import SPLITS, FederatedStream
from coreplay.errors import InputError
from coreplay.files import atomic_write, reading

_KEY = b"coreplay"


@source("files")
def files(
    *,
    path: Path | str | Sequence[Path | str],
    columns: Columns | Mapping[str, str] | None = None,
    periods: Periods | Mapping[str, Any] | None = None,
    clients: Clients | Mapping[str, Any] | None = None,
    labels: Sequence[str | int] | None = None,
) -> FederatedStream:
    """Read JSON lines or CSV, plain or gzipped, or Parquet, with a column mapping."""
    several = path if isinstance(path, Sequence) and not isinstance(path, str) else [path]
    paths = [Path(one) for one in several]
    if len(paths) == 1 and not (columns or periods or clients) and labels is None and saved_columns(paths[0]):
        return load_saved(paths[0])
    for one in paths:
        if "array" in saved_columns(one):
            raise InputError(
                f"{one}: is a saved stream of arrays, which is used alone and as it is: leave the options out here, "
                "and choose labels, clients and periods where the stream is made"
            )
    return build_stream(read_files(paths, wanted_columns(columns, clients)), periods, clients, labels)


def check_output(path: Path | str) -> None:
    """Refuse the name of a file that a stream can't be written to."""
    if Path(path).suffix != ".parquet":
        raise InputError(f"output {str(path)!r} has suffix {Path(path).suffix!r}: use .parquet")


def save(stream: FederatedStream, path: Path | str) -> None:
    """Write the stream to a .parquet file, in one step."""
    path = Path(path)
    check_output(path)
    who = pa.DictionaryArray.from_arrays(pa.array(stream.client_number, pa.int32()), pa.array(stream.clients))
    split = pa.DictionaryArray.from_arrays(pa.array(stream.test.astype(np.int8)), pa.array(SPLITS))
    columns: dict[str, Any] = {"client_id": who, "period": pa.array(stream.period, pa.int32()), "split": split}
    about: dict[str, Any] = {"periods": stream.periods, "notes": stream.notes}
    if stream.has_times:
        columns["timestamp"] = pa.array(stream.timestamp)
    if stream.label_names:
        codes = pa.array(stream.label, pa.int32(), mask=stream.label < 0)
        columns["label"] = pa.DictionaryArray.from_arrays(codes, pa.array(stream.label_names))
        about["label_names"] = stream.label_names
    if isinstance(stream.content, np.ndarray):
        about["shape"] = stream.content.shape[1:]
        width = int(np.prod(stream.content.shape[1:]))
        columns["array"] = pa.FixedSizeListArray.from_arrays(pa.array(stream.content.reshape(-1)), width)
    else:
        columns["text"] = stream.content
    table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(about).encode()})
    with atomic_write(path, private=True) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def saved_columns(path: Path) -> list[str]:
    """Return the columns of a file that `save` wrote; none of any other file."""
    try:
        with reading(path, "Parquet"):
            schema = pq.read_schema(path) if path.suffix == ".parquet" else pa.schema([])
    except InputError:
        return []
    return schema.names if _KEY in (schema.metadata or {}) else []


def load_saved(path: Path) -> FederatedStream:
    """Read a stream that `save` wrote."""
    with reading(path, "a saved stream"):
        table = pq.read_table(path)
        about = json.loads(table.schema.metadata[_KEY])
        if "shape" in about:
            flat = table.column("array").combine_chunks().flatten().to_numpy(zero_copy_only=False)
            content = flat.reshape(table.num_rows, *about["shape"])
        else:
            content = table.column("text").to_pylist()
        return FederatedStream(
            table.column("client_id").to_pylist(),
            table.column("period").to_numpy(),
            [split == "test" for split in table.column("split").to_pylist()],
            content,
            table.column("label").to_pylist() if "label_names" in about else None,
            table.column("timestamp").to_numpy() if "timestamp" in table.column_names else None,
            periods=about["periods"],
            label_names=about.get("label_names"),
            notes=about["notes"],
        )
