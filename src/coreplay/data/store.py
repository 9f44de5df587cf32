"""A stream in one Parquet file: rows with client, period, split, time, label, and a text or an array each."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coreplay.data.stream import SPLITS, FederatedStream
from coreplay.errors import InputError
from coreplay.files import atomic_write, reading

_KEY = b"coreplay"


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


def is_saved(path: Path) -> bool:
    """Tell whether the file was written by `save`."""
    try:
        with reading(path, "Parquet"):
            return path.suffix == ".parquet" and _KEY in (pq.read_schema(path).metadata or {})
    except InputError:
        return False


def holds_arrays(path: Path) -> bool:
    """Tell whether the samples of a saved stream are arrays, such as images, instead of texts."""
    with reading(path, "Parquet"):
        return "array" in pq.read_schema(path).names


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
