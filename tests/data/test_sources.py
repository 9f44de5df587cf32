"""The sources: synthetic, files of every kind, Hugging Face folders, digits."""

import csv
import gzip
import json
import os
import re
import subprocess
import sys
import tomllib

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coreplay.data import Columns, DataWarning, load, source, sources
from coreplay.data.describe import describe
from coreplay.data.sources.synthetic import assistant, choices, parse, popularity
from coreplay.errors import InputError
from coreplay.validation import make_table
from tests.data.shared import needs_shared_data, real

ROWS = [{"user": f"u{k % 4}", "day": k % 3, "query": f"text, {k}", "kind": f"k{k % 2}"} for k in range(48)]
NAMED = {"client": "user", "text": "query", "label": "kind", "period": "day"}


def test_the_grammar_is_as_large_as_asked():
    grammar = assistant()
    assert len(grammar.intents) >= 60
    assert sum(map(len, grammar.slots.values())) >= 3000
    for patterns in grammar.intents.values():
        for pattern in patterns:
            assert all(slot in grammar.slots for slot in pattern[1::2])
            assert not set("".join(pattern[::2])) & set("(){}|")


def test_choices_and_unknown_slots():
    assert choices("a( b|)(c|d)") == ["a bc", "a bd", "ac", "ad"]
    with pytest.raises(InputError, match="unknown slot 'romo': did you mean 'room'"):
        parse('[slots]\nroom = ["hall"]\n[intents.home]\nlight = ["light in the {romo}"]\n')


def test_the_synthetic_stream_is_the_same_in_every_process():
    script = (
        "from coreplay.data import load; s = load('synthetic', num_clients=8, seed=3); print(s.ids.sum(), s.content[9])"
    )
    shown = [
        subprocess.check_output([sys.executable, "-c", script], text=True, env=os.environ | {"PYTHONHASHSEED": seed})
        for seed in ("0", "7")
    ]
    assert shown[0] == shown[1]
    assert load("synthetic", num_clients=8, seed=4).content[9].as_py() not in shown[0]


def test_a_client_does_not_change_when_others_come():
    few, many = load("synthetic", num_clients=11, seed=5), load("synthetic", num_clients=40, seed=5)
    assert few.samples("client07", 3).texts == many.samples("client07", 3).texts


def test_each_strength_does_what_it_says():
    calm = {"num_clients": 40, "alpha": np.inf, "habits": 0, "drift": 0, "new_intents": 0, "seasonality": 0, "seed": 1}
    measured = {name: describe(load("synthetic", **calm | change))[0] for name, change in CHANGES.items()}
    base = measured["calm"]
    assert abs(base.heterogeneity - base.heterogeneity_random) < 0.01
    assert abs(base.drift_first_last - base.drift_first_last_random) < 0.01
    for name in ("preferences", "habits"):
        assert measured[name].heterogeneity > measured[name].heterogeneity_random + 0.03, name
    for name in ("drift", "new"):
        assert measured[name].drift_first_last > measured[name].drift_first_last_random + 0.02, name
    matrix = np.array(measured["season"].drift_matrix)
    assert matrix[0, 2] > matrix[0, 4] + 0.02  # half a season away, and back after a whole one


CHANGES = {
    "calm": {},
    "preferences": {"alpha": 0.1},
    "habits": {"habits": 0.9},
    "drift": {"drift": 1.0},
    "new": {"new_intents": 0.8},
    "season": {"seasonality": 1.0, "num_clients": 150},
}


def test_new_intents_are_unheard_before():
    weights = popularity(60, 10, drift=0.0, new_intents=0.5, seasonality=0.0, seed=2)
    silent = weights < 1e-6
    assert silent[0].sum() == 30
    assert not silent[-1].any()
    assert (np.diff(silent.astype(int), axis=0) <= 0).all()


def test_wrong_strengths_are_refused():
    for name, value, bound in (
        ("num_clients", 0, "at least 1"),
        ("num_periods", 0, "at least 1"),
        ("samples", 0, "at least 1"),
        ("habits", 2, "at most 1"),
        ("alpha", -1, "above 0"),
        ("test", 1, "below 1"),
    ):
        with pytest.raises(InputError, match=f"'{name}' of source 'synthetic': got {value}: must be {bound}"):
            load("synthetic", **{name: value})
    with pytest.raises(InputError, match="unknown option 'drfit' of source 'synthetic': did you mean 'drift'"):
        load("synthetic", drfit=1)
    with pytest.raises(InputError, match="unknown source 'synthetc'"):
        load("synthetc")


def write(path):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
        return path
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="") as stream:
        if ".csv" in path.name:
            writer = csv.DictWriter(stream, ["kind", "query", "user", "day"])
            writer.writeheader()
            writer.writerows(ROWS)
        else:
            stream.writelines(json.dumps(row) + "\n" for row in ROWS)
    return path


@pytest.mark.parametrize("name", ["s.jsonl", "s.jsonl.gz", "s.csv", "s.csv.gz", "s.parquet"])
def test_every_kind_of_file_gives_the_same_stream(tmp_path, name):
    stream = load("files", path=write(tmp_path / name), columns=NAMED)
    assert stream.clients == ("u0", "u1", "u2", "u3")
    found = [(c, t, s) for split in ("train", "test") for c, t, x in stream.cells(split) for s in x.texts]
    assert sorted(found) == sorted((r["user"], r["day"], r["query"]) for r in ROWS)
    assert stream.label_names == ("k0", "k1")


def test_several_files_make_one_stream_and_errors_name_the_right_one(tmp_path):
    paths = [write(tmp_path / name) for name in ("a.jsonl", "b.parquet", "c.csv")]
    assert len(load("files", path=paths, columns=NAMED)) == 3 * len(ROWS)
    (tmp_path / "c.csv").write_text("user,query,kind,day\nu,q,k,1\nu,q,k,never\n")
    with pytest.raises(InputError, match=r"c\.csv:3: column 'day' is 'never'"):
        load("files", path=paths, columns=NAMED)
    (tmp_path / "d.csv").write_text("user,query,day,label\nu,q,1,k\n")
    with pytest.raises(InputError, match="the files differ in the columns for label"):
        load("files", path=[paths[0], tmp_path / "d.csv"], columns={k: v for k, v in NAMED.items() if k != "label"})
    with pytest.raises(InputError, match="at least one file"):
        load("files", path=[])


def test_a_stream_comes_from_a_configuration(tmp_path):
    write(tmp_path / "s.csv")
    text = f"""
        source = "files"
        path = "{tmp_path / "s.csv"}"
        columns = {{client = "user", text = "query", label = "kind", period = "day"}}
        periods = {{test = 0.5}}
        clients = {{by = "dirichlet", number = 3, alpha = 1.0, min_samples = 0}}
        """
    options = tomllib.loads(text)
    stream = load(options.pop("source"), **options)
    assert len(stream) == 48
    assert stream.clients[0] == "client0"


def test_column_roles_are_checked():
    with pytest.raises(InputError, match="unknown option 'txt' of columns: did you mean 'text'"):
        make_table(Columns, {"txt": "a"}, "columns")


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        (
            "synthetic",
            {"num_clients": "abc"},
            "option 'num_clients' of source 'synthetic': got 'abc': must be a whole number",
        ),
        ("synthetic", {"drift": float("nan")}, "'drift' .*: got nan: must be at most 1000"),
        ("synthetic", {"samples": 1e30}, "'samples' .*: must be a whole number"),
        ("digits", {"num_clients": True}, "'num_clients' .*: got True: must be a whole number"),
        ("files", {"path": 5}, "'path' .*: got 5: must be a path or a string or a list"),
        ("files", {"path": "s.jsonl", "columns": "foo"}, "'columns' .*: got 'foo': must be a table"),
        ("files", {"path": "s.jsonl", "periods": 3}, "'periods' .*: got 3: must be a table"),
        ("files", {"path": "s.jsonl", "periods": {"days": "x"}}, "periods.days: got 'x': must be a number"),
        ("files", {"path": "s.jsonl", "periods": {"by": "time", "start": "soon"}}, "a time must be .* got 'soon'"),
        (
            "files",
            {"path": "s.jsonl", "clients": {"min_samples": "x"}},
            "clients.min_samples: got 'x': must be a whole number",
        ),
    ],
)
def test_values_of_another_kind_are_refused(tmp_path, monkeypatch, source, options, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "s.jsonl")
    named = {"columns": {"client": "user", "text": "query", "timestamp": "day"}} if source == "files" else {}
    with pytest.raises(InputError, match=words):
        load(source, **named | options)


def test_a_label_that_is_nan_is_refused(tmp_path):
    (tmp_path / "s.jsonl").write_text('{"client_id": "a", "text": "x", "period": 0, "label": NaN}\n')
    with pytest.raises(InputError, match=r"s\.jsonl:1: column 'label' is nan"):
        load("files", path=tmp_path / "s.jsonl")


def test_hugging_face_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    columns = {key: [row[key] for row in ROWS] for key in ROWS[0]}
    data = datasets.Dataset.from_dict(columns).class_encode_column("kind")
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": data, "extra": data.select(range(9))}).save_to_disk(tmp_path / "two")
    folder = tmp_path / "three"
    folder.mkdir()
    write(folder / "train.jsonl")
    for path, size in ((tmp_path / "one", 48), (tmp_path / "two", 48), (folder, 48)):
        stream = load("huggingface", path=str(path), columns=NAMED)
        assert len(stream) == size
        assert stream.label_names == ("k0", "k1")
    assert len(load("huggingface", path=str(tmp_path / "two"), part="extra", columns=NAMED)) == 9
    with pytest.raises(InputError, match="has no part 'dev': choose with part= one of train, extra"):
        load("huggingface", path=str(tmp_path / "two"), part="dev", columns=NAMED)
    with pytest.raises(InputError, match="unknown column 'usr': did you mean 'user'"):
        load("huggingface", path=str(tmp_path / "one"), columns=NAMED | {"client": "usr"})
    (tmp_path / "void").mkdir()
    with pytest.raises(InputError, match="datasets can't load it"):
        load("huggingface", path=str(tmp_path / "void"))
    with pytest.raises(InputError, match="nowhere: there is no such file or folder"):
        load("huggingface", path=str(tmp_path / "nowhere"))


def test_digits_are_rotated_or_come_class_by_class():
    rotated = load("digits", seed=1)
    assert len(rotated) == 1797
    assert rotated.content.shape[1:] == (8, 8)
    text, _ = describe(rotated)
    assert text.drift_first_last > 2 * text.drift_first_last_random
    step = load("digits", change="class_incremental", num_periods=5)
    for t in range(5):
        assert set(step.of_period(t).label.tolist()) == {2 * t, 2 * t + 1}
    with pytest.raises(InputError, match=r"'change' .*: got 'rotate': must be 'rotated' or 'class_incremental'"):
        load("digits", change="rotate")
    with pytest.raises(InputError, match="num_periods must be at most 10"):
        load("digits", change="class_incremental", num_periods=11)


def test_a_source_of_ones_own_is_one_decorator():
    from coreplay.data import FederatedStream

    @source("test_own")
    def own(*, words: int = 2) -> FederatedStream:
        """Say nothing."""
        return FederatedStream(["a"], [0], [False], ["x " * words], notes=["all said"])

    assert sources()["test_own"] == "Say nothing."
    with pytest.warns(DataWarning, match="all said"):
        assert load("test_own", words=3).all().texts == ["x x x "]


@needs_shared_data
@pytest.mark.filterwarnings("ignore::coreplay.data.DataWarning")
def test_the_real_streams_load_with_the_sizes_that_they_state():
    for name, rows in (("apache_commits", 239_096), ("debian_changelogs", 41_033), ("slurp_speakers", 31_640)):
        stream = load("files", path=real(name), clients={"min_samples": 0})
        stats = json.loads(real(name).with_name("stats.json").read_text())
        skipped = np.array(stats["rows_per_period"]) - stream.counts().sum(axis=0)
        noted = re.search(r"the same client, time, text and all in (\d+) rows", " ".join(stream.notes))
        assert skipped.min() >= 0
        assert skipped.sum() == (int(noted[1]) if noted else 0) < 0.01 * rows
        assert len(stream) + skipped.sum() == rows == stats["rows"]
        assert len(stream.clients) == stats["clients"]


@needs_shared_data
@pytest.mark.filterwarnings("ignore::coreplay.data.DataWarning")
def test_drift_of_slurp_is_what_its_page_says():
    text, _ = describe(load("files", path=real("slurp_speakers"), clients={"min_samples": 0}))
    assert text.drift_first_last == pytest.approx(0.492, abs=0.005)
    assert text.drift_first_last_random == pytest.approx(0.040, abs=0.005)
    assert text.drift_neighbours[0] == pytest.approx(0.155, abs=0.005)
    assert text.drift_neighbours[8] == pytest.approx(0.456, abs=0.005)
