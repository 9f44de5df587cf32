"""Bad files: an error that names file, line and column, or a counted warning where skipping is right."""

import gzip
import json
import sys
from subprocess import run

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coreplay.data import DataWarning, load
from coreplay.data.readers import LONGEST, lines
from coreplay.errors import InputError

COLUMNS = ("client_id", "period", "timestamp", "text", "label", "split")


def rows(n=800):
    splits = ("train", "test")
    return [
        dict(zip(COLUMNS, (f"c{k % 7}", k % 3, 10**9 + k, f"say {k}", "l", splits[k % 2]), strict=True))
        for k in range(n)
    ]


def written(path, given):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in given]
    path.write_text("\n".join(lines) + "\n")
    return path


def changed(line, **values):
    given = rows()
    given[line - 1] = given[line - 1] | values
    return given


def without(line, column):
    given = rows()
    del given[line - 1][column]
    return given


def test_a_broken_json_line_is_named_with_its_column(tmp_path):
    given = rows()
    given[730] = '{"client_id": "c1", "period": 0, "text": "half a'
    with pytest.raises(InputError, match=r"bad\.jsonl:731:42: not JSON \(Unterminated string"):
        load("files", path=written(tmp_path / "bad.jsonl", given))


def mixed():
    given = rows(6)
    for row in given:
        row["timestamp"] = "2026-01-01T00:00:00+01:00"
    given[3]["timestamp"] = "2026-01-01T00:00:00"
    return given


BAD = [
    ("missing", lambda: without(731, "text"), r":731: column 'text' is missing"),
    (
        "first missing",
        lambda: [{"client_id": "a", "txt": "b", "period": 0}],
        r":1: unknown column 'text': did you mean 'txt'",
    ),
    ("list", lambda: [*rows(5), "[1, 2]"], r":6: must be an object with named columns"),
    ("deep", lambda: [*rows(5), "[" * 100_000], r":6.*not JSON"),
    (
        "mixed zones",
        mixed,
        r":4: column 'timestamp' is '2026-01-01T00:00:00': this is a time without a zone, but .*:1",
    ),
    ("mixed kinds", lambda: changed(9, timestamp="2026-01-01T00:00:00+01:00"), r":9: .*but .*:1 has Unix seconds"),
    ("no time", lambda: changed(731, timestamp="yesterday"), r":731: column 'timestamp' is 'yesterday': not a time"),
    ("null time", lambda: changed(731, timestamp=None), r":731: column 'timestamp' is None: not a time"),
    ("milliseconds", lambda: changed(731, timestamp=10**15), r":731: .*are these milliseconds"),
    ("nan time", lambda: changed(731, timestamp=float("nan")), r":731: column 'timestamp'"),
    ("period", lambda: changed(731, period=1.5), r":731: column 'period' is 1.5: periods must be whole"),
    ("negative period", lambda: changed(731, period=-1), r":731: column 'period' is -1"),
    ("word period", lambda: changed(731, period="one"), r":731: column 'period' is 'one': must be a number"),
    ("huge period", lambda: changed(731, period=10**9), r":731: column 'period'"),
    ("endless period", lambda: changed(731, period=10**400), r":731: column 'period' .*must be a number"),
    ("split", lambda: changed(731, split="dev"), r":731: column 'split' is 'dev': must be 'train' or 'test'"),
    ("text", lambda: changed(731, text=["a"]), r":731: column 'text' is \['a'\]: must be a string"),
    ("number", lambda: changed(731, text=7), r":731: column 'text' is 7: the text must be a string"),
    ("surrogate", lambda: changed(731, text="\ud800"), r":731: column 'text' .*surrogate"),
    ("client", lambda: changed(731, client_id=None), r":731: column 'client_id' is None: the client must be"),
    ("surrogate client", lambda: changed(731, client_id="a\ud800"), r":731: column 'client_id' .*surrogate"),
    ("surrogate label", lambda: changed(731, label="a\ud800"), r":731: column 'label' .*surrogate"),
    ("empty client", lambda: changed(731, client_id=""), r":731: column 'client_id' is ''"),
]


@pytest.mark.parametrize(("make", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_values_are_named(tmp_path, make, message):
    with pytest.raises(InputError, match=r"bad\.jsonl" + message):
        load("files", path=written(tmp_path / "bad.jsonl", make()))


def test_different_zones_are_converted(tmp_path):
    given = rows(2)
    given[0]["timestamp"], given[1]["timestamp"] = "2026-01-01T02:00:00+02:00", "2025-12-31T19:00:00-05:00"
    stream = load("files", path=written(tmp_path / "z.jsonl", given), clients={"min_samples": 0})
    assert set(stream.timestamp.tolist()) == {1767225600}


def test_empty_texts_and_duplicates_are_skipped_and_counted(tmp_path):
    given = rows()
    given[4]["text"], given[9]["text"], given[11]["text"] = "", "  ", None
    given += [given[20], given[21]]
    path = written(tmp_path / "odd.jsonl", given)
    with pytest.warns(DataWarning) as caught:
        stream = load("files", path=path)
    assert len(stream) == 797
    messages = [str(warning.message) for warning in caught]
    assert messages[0] == f"empty text in 3 rows, first at {path}:5: skipped"
    assert "in 2 rows, first at" in messages[1]
    assert f"{path}:801" in messages[1]
    assert stream.notes == tuple(messages)


def test_to_say_a_thing_twice_is_no_mistake_without_times(tmp_path):
    given = [{"client_id": "a", "period": 0, "text": "stop"}] * 3
    stream = load("files", path=written(tmp_path / "t.jsonl", given), periods={"test": 0})
    assert len(stream) == 3


def test_client_ids_like_paths_are_kept_and_touch_no_file(tmp_path):
    home = tmp_path / "deep" / "er"
    home.mkdir(parents=True)
    path = written(home / "p.jsonl", changed(3, client_id="../../x") + changed(4, client_id="/etc/passwd")[:10])
    with pytest.warns(DataWarning) as caught:
        stream = load("files", path=path, clients={"min_samples": 0})
    assert any("2 client ids look like paths, first '../../x': kept" in str(one.message) for one in caught)
    assert len(stream.samples("../../x", 2)) == 1
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["deep", "er", "p.jsonl"]


@pytest.mark.parametrize("name", ["long.jsonl", "long.jsonl.gz", "long.csv"])
def test_a_gigabyte_line_does_not_fill_the_memory(tmp_path, name):
    """Make it sparse or packed, so that the test writes little; read it in a process with little memory to spare."""
    path = tmp_path / name
    if name.endswith(".gz"):
        with gzip.open(path, "wb", compresslevel=1) as stream:
            stream.write(json.dumps(rows(1)[0]).encode() + b"\n")
            block = b"x" * 2**22
            for _ in range(64):  # 256 MB unpacked: far above the limit that the process is given
                stream.write(block)
    else:
        with path.open("wb") as stream:
            stream.write(
                b"client_id,text,period\n" if name.endswith(".csv") else json.dumps(rows(1)[0]).encode() + b"\n"
            )
            stream.truncate(2**30)
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from coreplay.data.readers import lines\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: print(sum(1 for _ in lines(Path(sys.argv[1]))))\n"
        "except ValueError as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    shown = run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert f"{name}:2: the line is longer than 1048576 bytes" in shown[0]
    assert int(shown[1]) < 40_000  # kilobytes
    with pytest.raises(InputError, match=":2: the line is longer"):
        load("files", path=path)


def test_damaged_files_are_named(tmp_path):
    path = tmp_path / "cut.jsonl.gz"
    with gzip.open(path, "wt") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows())
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(InputError, match=r"cut\.jsonl\.gz:\d+: can't be read: Compressed file ended"):
        load("files", path=path)
    (tmp_path / "latin.jsonl").write_bytes(b'{"client_id": "a", "text": "x", "period": 0}\n{"client_id": "\xe9"}\n')
    with pytest.raises(InputError, match=r"latin\.jsonl:2:16: byte 0xe9 is not UTF-8"):
        load("files", path=tmp_path / "latin.jsonl")
    (tmp_path / "no.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(InputError, match=r"no\.parquet' can't be read as Parquet"):
        load("files", path=tmp_path / "no.parquet")
    for name in ("empty.jsonl", "empty.csv"):
        (tmp_path / name).write_text("\n" if name.endswith("l") else "client_id,text\n")
        with pytest.raises(InputError, match=f"{name}: has no rows"):
            load("files", path=tmp_path / name)
    (tmp_path / "x.docx").write_text("x")
    with pytest.raises(InputError, match=r"unknown kind of file '\.docx'"):
        load("files", path=tmp_path / "x.docx")
    with pytest.raises(InputError, match="does not exist"):
        load("files", path=tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client_id,text,period\na,b,0\na,b\n", r"c\.csv:3: has 2 values for 3 columns"),
        ('client_id,text,period\na,"b,0\n', r"c\.csv:2: not CSV"),
        ("client_id,txt,period\na,b,0\n", r"c\.csv:2: unknown column 'text': did you mean 'txt'"),
        ('client_id,text,period\na,"two\nlines",0\na,b,x\n', r"c\.csv:4: column 'period' is 'x'"),
    ],
)
def test_bad_csv_is_named(tmp_path, text, message):
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        load("files", path=tmp_path / "c.csv")


def test_bad_parquet_is_named(tmp_path):
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"client_id": ["a", "b"], "text": ["x", "y"], "period": [0, -3]}), path)
    with pytest.raises(InputError, match=r"p\.parquet: row 2: column 'period' is -3"):
        load("files", path=path)
    with pytest.raises(InputError, match=r"p\.parquet: unknown column 'user'"):
        load("files", path=path, columns={"client": "user"})


def test_an_empty_label_of_a_csv_file_is_none(tmp_path):
    (tmp_path / "a.csv").write_text("client_id,period,text,label\na,0,one,x\na,0,two,\n")
    stream = load("files", path=tmp_path / "a.csv", periods={"test": 0})
    assert stream.label_names == ("x",)
    assert sorted(stream.label.tolist()) == [-1, 0]


def test_long_texts_may_be_in_csv_files(tmp_path):
    (tmp_path / "a.csv").write_text(f"client_id,period,text\na,0,{'x' * 200_000}\n")
    assert len(load("files", path=tmp_path / "a.csv", periods={"test": 0})) == 1


def test_gzipped_parquet_is_refused_by_name(tmp_path):
    (tmp_path / "a.parquet.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"unknown kind of file '\.parquet\.gz': use one of .*, \.csv\.gz, \.parquet$"):
        load("files", path=tmp_path / "a.parquet.gz")


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("files", {"path": [1]}, "'path' .*: must be a string"),
        ("files", {"path": 5}, "'path' .*: got 5: must be a path or"),
        ("synthetic", {"drift": float("inf")}, "'drift' of source 'synthetic': got inf: must be at most 1000"),
        ("digits", {"alpha": float("inf")}, "'alpha' .*: got inf: must be a finite number"),
        (
            "files",
            {"path": "x.jsonl", "clients": {"by": "dirichlet", "alpha": float("inf")}},
            "clients.alpha: got inf: must be a finite number",
        ),
        (
            "files",
            {"path": "x.jsonl", "clients": {"min_samples": -3}},
            "clients.min_samples: got -3: must be at least 0",
        ),
    ],
)
def test_wrong_options_are_named(source, options, words):
    with pytest.raises(InputError, match=words):
        load(source, **options)


def test_a_walk_that_goes_far_overflows_nothing():
    assert len(load("synthetic", num_clients=2, num_periods=3, drift=1000.0, samples=4)) > 0


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_lines_end_alike_and_may_be_just_as_long_as_allowed(tmp_path, end):
    path = tmp_path / "a.jsonl"
    longest = b"x" * (LONGEST - len(end.removesuffix(b"\n")))
    path.write_bytes(b"\xef\xbb\xbfa\n\n" + longest + end)
    assert list(lines(path)) == [(1, "a"), (2, ""), (3, longest.decode())]
    path.write_bytes(b"a\n" + longest + b"x" + end)
    with pytest.raises(InputError, match=r"a\.jsonl:2: the line is longer"):
        list(lines(path))
