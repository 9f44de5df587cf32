"""Files that somebody changed: each is read, or refused in one line that names it; never a traceback, never a hang.

The files are made by the program's own writers and then changed: bytes flipped, cut, put in, numbers made huge, values
put in the place of others, nesting made deep. The changes are the same in every run of the tests.
"""

import gzip
import json
import os
import random
import re
import shutil
import sqlite3
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from coreplay.data import load, save
from coreplay.errors import InputError
from coreplay.experiments.sweep import Sweep
from coreplay.files import read_arrays
from coreplay.replay import Buffer, Item, ReplayError, Store, decode, encode
from coreplay.report import tables
from coreplay.report.compare import group_runs
from coreplay.report.figures import FIGURES
from coreplay.report.load import load_runs
from coreplay.runtime import Config, Run, RunFolder
from coreplay.runtime.run_dir import Checkpoint, Progress, _digest
from coreplay.runtime.run_index import list_runs

HUGE = [b"9" * 400, b"1e999", b"-1", b"1e308", b"NaN", b"18446744073709551616", b"0.5"]
ODD = [b"null", b"true", b'"x"', b"[]", b"{}", b"[1]", b'{"a": 1}', b'"\\ud800"', b"\xff\xfe", b"\x00"]
METRICS = [
    {"period": t, "test_period": s, "total": 40.0 + t - s, "weight": 10.0, "perplexity": 60.0}
    for t in range(3)
    for s in range(3)
]
BUFFERS = [{"period": t, "clients": 2, "kept": 3, "arrived": [2, 1, 0], "distinct": 2} for t in range(2)]
ROUNDS = [{"period": 0, "round": r, "relaxed": 4.0 / (r + 1), "integer": None, "answered": 2} for r in range(3)]


def mutated(good, rng, text):
    """Return the bytes of a file with one to three changes."""
    data = good
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(data) + 1)
        way = rng.randrange(8 if text else 4)
        if way == 0 and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        elif way == 1:
            data = data[:at]
        elif way == 2:
            data = data[:at] + rng.randbytes(rng.choice((1, 4, 30))) + data[at:]
        elif way == 3:
            data = data[:at] + rng.choice((b"\xff", b"\x00", b"\x7f")) * rng.choice((4, 8)) + data[at + 8 :]
        elif way == 4:
            data = data[:at] + rng.choice((b"[", b'{"a":', b"[[")) * rng.choice((300, 3000, 60_000)) + data[at:]
        elif way in (5, 6):  # another value in the place of one
            places = list(re.finditer(rb'-?\d[\d.e+-]*|"[^"]*"|true|false|null|\[[^][]*\]', data))
            if places:
                place = rng.choice(places)
                data = data[: place.start()] + rng.choice(HUGE + ODD) + data[place.end() :]
        else:
            lines = data.split(b"\n")
            first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[first] = lines[second]
            data = b"\n".join(lines)
    return data


def refused(path, read):
    """Read; return whether the file was refused, and check how."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
    except (InputError, ReplayError) as error:
        said = str(error)
    else:
        return False
    assert len(said.splitlines()) == 1, said
    return True


def rewritten(path, rng):
    """Change the JSON inside a saved stream or a checkpoint, and write the file anew: it is whole but wrong."""
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        about = mutated(table.schema.metadata[b"coreplay"], rng, True)
        pq.write_table(table.replace_schema_metadata({b"coreplay": about}), path)
    else:
        with safe_open(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about = {name: file.metadata()[name] for name in ("progress", "buffers")}
        about["progress"] = mutated(about["progress"].encode(), rng, True).decode("utf-8", "replace")
        save_file(arrays, path, about | {"digest": _digest(arrays, about)})


def stream_of(path):
    return load("files", path=path, periods={"by": "given"} if path.suffix == ".parquet" else None).all()


def saved(path):
    stream = load("files", path=path)
    return stream.counts(), len(stream.ids)


def opened(path):
    with Store.open(path) as store:
        for client in store.clients():
            for item in store.load(client).items:
                decode(item.payload)
        store.rewind(0)


def folder_of(path):
    """Do all that `coreplay runs` and `coreplay report` do with a run's folder but draw."""
    folder = path.parent
    list_runs(folder.parent)
    found, _ = load_runs([folder.parent])
    for group in group_runs(found):
        for make in FIGURES.values():
            make(group)
        tables.results(group).markdown()
        tables.differences(group)
    try:
        RunFolder.open(folder).checkpoint()
    finally:
        Run.load(folder)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Write one file of each kind, and say how each is read."""
    folder = tmp_path_factory.mktemp("originals")
    rows = [
        {"client_id": f"c{k % 3}", "period": k % 2, "timestamp": 10**9 + k, "text": f"say {k}", "label": "l"}
        for k in range(12)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(lines)
    (folder / "rows.csv").write_text(
        ",".join(rows[0]) + "\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows)
    )
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    stream = load("synthetic", num_clients=3, num_periods=2, samples=4)
    save(stream, folder / "saved.parquet")
    save(load("digits", num_clients=2, num_periods=2).only(["client0"]), folder / "images.parquet")
    numbers = np.arange(12.0).reshape(4, 3)
    np.save(folder / "a.npy", numbers)
    np.savez(folder / "a.npz", gradients=numbers, new=np.ones(4, bool))
    save_file({"gradients": numbers}, folder / "a.safetensors")
    (folder / "payload.bin").write_bytes(encode({"text": "play jazz", "label": 3, "image": np.eye(2)}))
    with Store.open(folder / "buffers.sqlite") as store:
        for period in range(2):
            items = tuple(Item(str(k), period, encode({"content": f"say {k}"})) for k in range(3))
            store.replace(*[Buffer(name, period, 9, items) for name in ("ann", "bo")])
    shutil.copy(folder / "buffers.sqlite", folder / "plain.sqlite")
    with sqlite3.connect(folder / "plain.sqlite") as db:
        db.execute("PRAGMA journal_mode = DELETE")
    db.close()
    (folder / "sweep.toml").write_text(
        'strategies = ["none", { strategy = "corrective", coordination_rounds = 2 }]\n'
        "budgets = [2, 4]\nseeds = [0, 1]\n"
        '[grid]\n"federated.learning_rate" = [0.1, 0.2]\n[run]\nperiods = 2\n[run.stream.options]\nnum_clients = 5\n'
    )
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """Write a finished run's folder, with the writers of a run but without training."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    place = RunFolder.create(folder, Config.make({"replay": {"strategy": "corrective"}}))
    progress = Progress(3, 0, False, METRICS, [], ROUNDS, BUFFERS, 10, 20, {"training": 1.5})
    place.save(Checkpoint(progress, np.ones(5, np.float32), {"momentum": np.zeros(5, np.float32)}))
    figures = [60.0, 61.0, 62.0]
    metrics = {"perplexity": figures, "perplexity_mean_over_periods": figures, "forgetting": [None, 1.0, 2.0]}
    summary = {"strategy": "corrective", "budget": 20, "seed": 0, "metric": "perplexity", "lower_is_better": True}
    summary |= {
        "compared_by_ratio": True,
        "missing": {"2": ["ann"]},
        "metrics": metrics,
        "bytes_up": 10,
        "bytes_down": 20,
        "seconds": {"training": 1.5},
    }
    place.finish(progress, summary)
    (folder / "failure.txt").write_text("InputError: no memory\n")
    (folder / "run.log").write_text("2026 begin {}\n")
    return folder


KINDS = {
    "rows.jsonl": (stream_of, 250),
    "rows.csv": (stream_of, 200),
    "rows.jsonl.gz": (stream_of, 120),
    "rows.parquet": (stream_of, 200),
    "saved.parquet": (saved, 250),
    "images.parquet": (saved, 100),
    "a.npy": (read_arrays, 150),
    "a.npz": (read_arrays, 150),
    "a.safetensors": (read_arrays, 150),
    "payload.bin": (lambda path: decode(path.read_bytes()), 200),
    "buffers.sqlite": (opened, 100),
    "plain.sqlite": (opened, 100),
    "sweep.toml": (Sweep.load, 60),
}
RUN = {
    "config.toml": 60,
    "versions.json": 60,
    "summary.json": 120,
    "metrics.jsonl": 120,
    "coordination.jsonl": 80,
    "buffers.jsonl": 80,
    "checkpoint.safetensors": 120,
    "failure.txt": 30,
}


def test_there_are_enough():
    assert sum(many for _, many in KINDS.values()) + sum(RUN.values()) >= 2000


@pytest.mark.parametrize("name", KINDS)
def test_a_changed_file_is_read_or_refused_in_one_line(originals, tmp_path, name):
    read, many = KINDS[name]
    good = (originals / name).read_bytes()
    rng = random.Random(name)
    path = tmp_path / name
    path.write_bytes(good)
    assert not refused(path, read)
    no = 0
    for _ in range(many):
        for left in tmp_path.iterdir():
            left.unlink()
        path.write_bytes(good)
        if name == "saved.parquet" and rng.random() < 0.5:
            rewritten(path, rng)
        else:
            path.write_bytes(mutated(good, rng, name.endswith(("jsonl", "csv", "toml"))))
        no += refused(path, read)
    assert no > many // 10


@pytest.mark.parametrize("name", RUN)
def test_a_changed_run_folder_is_read_or_refused_in_one_line(run_folder, tmp_path, name):
    shutil.copytree(run_folder, tmp_path / "bad")
    shutil.copytree(run_folder, tmp_path / "good")
    path = tmp_path / "bad" / name
    good = path.read_bytes()
    if name in ("checkpoint.safetensors", "failure.txt"):
        (tmp_path / "bad/summary.json").unlink()  # else nobody looks at them
    rng = random.Random(name)
    for _ in range(RUN[name]):
        path.write_bytes(good)
        if name == "checkpoint.safetensors" and rng.random() < 0.5:
            rewritten(path, rng)
        else:
            path.write_bytes(mutated(good, rng, name.endswith(("json", "jsonl", "toml", "txt"))))
        refused(path, folder_of)
        assert next(run for run in list_runs(tmp_path) if run.name == "good").state == "finished"


@pytest.mark.parametrize("name", [*RUN, "run.log"])
def test_a_pipe_in_a_run_folder_stops_nobody(run_folder, tmp_path, name):
    for folder in ("bad", "good"):
        shutil.copytree(run_folder, tmp_path / folder)
    if name in ("checkpoint.safetensors", "failure.txt", "run.log"):
        (tmp_path / "bad/summary.json").unlink()
    (tmp_path / "bad" / name).unlink()
    os.mkfifo(tmp_path / "bad" / name)
    found = {run.name: run for run in list_runs(tmp_path)}
    assert found["good"].state == "finished"
    assert [str(run.run.folder.name) for run in load_runs([tmp_path])[0]][-1] == "good"
    if name in ("config.toml", "summary.json", "checkpoint.safetensors", "failure.txt"):
        assert found["bad"].state == "damaged"
        assert "is no file" in found["bad"].problem


@pytest.mark.parametrize("name", ["rows.jsonl", "saved.parquet", "a.npy", "sweep.toml", "plain.sqlite"])
def test_a_pipe_is_no_file(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="no file"):
        KINDS[name][0](tmp_path / name)


def test_a_few_bytes_do_not_ask_for_gigabytes(originals, tmp_path):
    table = pq.read_table(originals / "saved.parquet")
    path = tmp_path / "s.parquet"
    about = json.loads(table.schema.metadata[b"coreplay"])
    for periods in (10**9, 10**30, -1, 2.5, "2", None, [2]):
        changed = json.dumps(about | {"periods": periods}).encode()
        pq.write_table(table.replace_schema_metadata({b"coreplay": changed}), path)
        if periods is not None:
            with pytest.raises(InputError, match=r"s\.parquet' can't be read as a saved stream: periods"):
                load("files", path=path)
    rows = [{"client_id": f"c{k}", "text": "x", "period": 99_999 * (k > 0)} for k in range(200)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(InputError, match="200 clients x 100000 periods are 20000000 cells for 200 samples"):
        load("files", path=path, periods={"by": "given"})
    plan = "seeds = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n[grid]\n"
    plan += "".join(
        f'"federated.{name}" = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n' for name in ("rounds", "epochs", "max_grad_norm")
    )
    (tmp_path / "sweep.toml").write_text('strategies = ["none", "uniform"]\n' + plan)
    with pytest.raises(InputError, match="the plan has more than 10000 runs"):
        Sweep.load(tmp_path / "sweep.toml")
