"""Periods, splits, partitions and limits against slow, obvious code."""

import json
from datetime import date

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coreplay.data import Clients, DataWarning, Periods, load
from coreplay.data.partition import DAY, cut_by_order, cut_by_time, last_of_each, limited, partition
from coreplay.data.sources.files import save
from coreplay.errors import InputError
from coreplay.validation import make_table
from tests.data.shared import needs_shared_data, real


@given(
    st.lists(st.integers(-50, 300), min_size=1), st.integers(1, 40), st.integers(1, 8), st.sampled_from([0, 0.2, 0.5])
)
def test_periods_by_time(days, length, number, share):
    rule = Periods(days=length, number=number, start="1970-01-11", test=share)
    cut = cut_by_time(np.array(days) * DAY, rule)
    for day, period, test in zip(days, cut.period, cut.test, strict=True):
        since = day - 10
        expected = since // length if 0 <= since < length * number else -1
        assert period == expected
        assert test == (share > 0 and (since % length) / length >= 1 - share - 1e-12)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50), st.integers(1, 12))
def test_a_number_of_periods_covers_the_whole_time(seconds, number):
    cut = cut_by_time(np.array(seconds), Periods(number=number))
    assert cut.periods == number
    assert cut.period.min() == 0
    assert cut.period.max() < number


def test_the_papers_four_and_one_weeks():
    hours = np.arange(0, 350 * 24) * 3600
    cut = cut_by_time(hours, Periods(days=35, number=10, test=0.2))
    assert np.bincount(cut.period).tolist() == [35 * 24] * 10
    assert np.bincount(cut.period[cut.test]).tolist() == [7 * 24] * 10
    assert (cut.test == (hours // DAY % 35 >= 28)).all()


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(1, 6), st.sampled_from([0.0, 0.3, 0.5]))
def test_order_is_cut_into_equal_parts_and_ties_stay_together(order, number, share):
    values = np.array(order)
    cut = cut_by_order(values, Periods(number=number, test=share))
    for a in range(len(order)):
        for b in range(len(order)):
            if order[a] < order[b]:
                assert cut.period[a] <= cut.period[b]
            if order[a] == order[b]:
                assert (cut.period[a], cut.test[a]) == (cut.period[b], cut.test[b])
            if cut.period[a] == cut.period[b] and cut.test[a] and not cut.test[b]:
                assert order[a] > order[b]
    if len(set(order)) == len(order) and len(order) % number == 0:
        assert np.bincount(cut.period, minlength=number).tolist() == [len(order) // number] * number


@needs_shared_data
@pytest.mark.filterwarnings("ignore::coreplay.data.DataWarning")
def test_the_deciles_of_slurp_come_out_as_its_makers_cut_them():
    rule = {"by": "order", "number": 10}
    options = {"clients": {"min_samples": 0}}
    ours = load("files", path=real("slurp_speakers"), columns={"order": "prompt_order"}, periods=rule, **options)
    theirs = load("files", path=real("slurp_speakers"), **options)
    ours_of = dict(zip(ours.ids.tolist(), ours.period.tolist(), strict=True))
    same = [ours_of.get(k) == t for k, t in zip(theirs.ids.tolist(), theirs.period.tolist(), strict=True)]
    assert np.mean(same) > 0.998  # they cut at other values where sentences tie


def test_last_of_each_takes_the_last_share():
    test = last_of_each(np.array([0, 0, 0, 0, 0, 1]), np.array([5, 1, 4, 2, 3, 9]), 0.4)
    assert test.tolist() == [True, False, True, False, False, False]


def file(tmp_path, rows):
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_outside_all_periods_are_counted(tmp_path):
    rows = [{"client_id": "a", "text": str(k), "timestamp": k * DAY} for k in range(20)]
    with pytest.warns(DataWarning, match=r"a time outside all periods in 12 rows, first at .*:1: left out"):
        stream = load("files", path=file(tmp_path, rows), periods={"days": 4, "start": "1970-01-05", "number": 2})
    assert stream.counts().tolist() == [[4, 4]]
    with pytest.raises(InputError, match="no row lies in any period"):
        load("files", path=file(tmp_path, rows), periods={"days": 4, "start": "2000-01-05", "number": 2})


def test_a_hash_of_the_text_splits_when_nothing_else_can(tmp_path):
    rows = [{"client_id": "a", "text": f"t{k % 400}", "period": k // 400} for k in range(800)]
    stream = load("files", path=file(tmp_path, rows))
    test, train = ({text for t in (0, 1) for text in stream.of_period(t, split).texts} for split in ("test", "train"))
    assert not test & train
    assert 50 < len(test) < 110


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"periods": {"by": "tme"}}, "periods.by: got 'tme': must be 'given', 'time' or 'order'"),
        ({"periods": {"by": "time"}}, "periods by time need a column for the timestamp"),
        ({"periods": {"by": "order"}}, "periods by order need a column for the order"),
        ({"periods": {"day": 3}}, "unknown option 'day' of periods: did you mean 'days'"),
        ({"periods": {"test": 1.0}}, "periods.test: got 1.0: must be below 1"),
        ({"periods": Periods(test=1.0)}, "periods.test: got 1.0: must be below 1"),
        ({"periods": {"days": 0}}, "periods.days: got 0: must be above 0"),
        ({"periods": {"days": float("inf")}}, "periods.days: got inf: must be a finite number"),
        ({"periods": {"number": 0}}, "periods.number: got 0: must be at least 1"),
        ({"clients": {"by": "dirichlet", "number": 3}}, "need a label column"),
        ({"clients": {"by": "col"}}, "clients.by: got 'col': must be 'column', 'dirichlet', 'pathological' or 'iid'"),
        ({"clients": {"min_sample": 3}}, "unknown option 'min_sample' of clients: did you mean 'min_samples'"),
        ({"clients": {"min_samples": 30}}, "the limits leave no client"),
        ({"clients": {"max_samples": 0}}, "clients.max_samples: got 0: must be at least 1"),
        ({"clients": {"max_test_samples": 0}}, "clients.max_test_samples: got 0: must be at least 1"),
        ({"clients": {"alpha": 0}}, "clients.alpha: got 0: must be above 0"),
        ({"columns": {"client": ""}}, "clients come from a column, and there is none"),
        ({"labels": ["a"]}, "labels need a label column"),
        ({"labels": []}, "labels must be a list of at least one label"),
        ({"labels": "a"}, "'labels' .*: got 'a': must be a list"),
        ({"labels": 1}, "'labels' .*: got 1: must be a list"),
        ({"labels": [["a"]]}, "'labels' .*: must be a string or a whole number"),
    ],
)
def test_mistakes_are_explained(tmp_path, options, message):
    rows = [{"client_id": "a", "text": str(k), "period": 0} for k in range(20)]
    with pytest.raises(InputError, match=message):
        load("files", path=file(tmp_path, rows), **options)


def test_rows_of_some_labels_only(tmp_path):
    labels = ["red", "blue", None, 3, "red", "green", "blue", "red"]
    rows = [{"client_id": f"c{k % 2}", "text": str(k), "period": 0, "label": one} for k, one in enumerate(labels)]
    path = file(tmp_path, rows)
    with pytest.warns(DataWarning, match="4 of 8 rows have none of these labels: left out"):
        stream = load("files", path=path, labels=["red", 3], periods={"test": 0})
    assert sorted(zip(stream.of_period(0).texts, stream.of_period(0).labels, strict=True)) == [
        ("0", "red"), ("3", "3"), ("4", "red"), ("7", "red")
    ]  # fmt: skip
    with pytest.raises(
        InputError, match=r"unknown label 'gren': did you mean 'green'\? \(known: 3, blue, green, red\)"
    ):
        load("files", path=path, labels=["red", "gren"])
    rows[4]["period"] = -1
    with pytest.raises(InputError, match=r"\.jsonl:5: column 'period' is -1"):  # lines are counted in the whole file
        load("files", path=file(tmp_path, rows), labels=["red"])


def test_labels_do_not_move_periods(tmp_path):
    rows = [
        {"client_id": "a", "text": str(k), "timestamp": k * DAY, "label": "early" if k < 40 else "late"}
        for k in range(80)
    ]
    path, periods = file(tmp_path, rows), {"days": 20, "number": 4, "test": 0}
    with pytest.warns(DataWarning, match="left out"), pytest.warns(DataWarning, match="2 of 4 periods have no row"):
        late = load("files", path=path, labels=["late"], periods=periods)
    assert late.counts("train").tolist() == [[0, 0, 20, 20]]
    save(load("files", path=path, periods=periods), tmp_path / "saved.parquet")
    with pytest.warns(DataWarning, match="left out"), pytest.warns(DataWarning, match="2 of 4 periods have no row"):
        early = load("files", path=tmp_path / "saved.parquet", labels=["early"])
    assert early.counts("train").tolist() == [[20, 20, 0, 0]]
    with pytest.raises(InputError, match="labels must be a list of at least one label"):
        load("files", path=tmp_path / "saved.parquet", labels=[])
    many = file(tmp_path, [row | {"label": k} for k, row in enumerate(rows)])
    with pytest.raises(InputError, match="unknown label 'x': it is none of 80, such as '0'"):
        load("files", path=many, labels=["x"])


def test_a_saved_stream_of_arrays_takes_no_options(tmp_path):
    path = tmp_path / "digits.parquet"
    save(load("digits"), path)
    for options in ({"labels": ["0"]}, {"clients": {"max_samples": 2}}, {"periods": {"number": 2}}):
        with pytest.raises(InputError, match=r"digits\.parquet: is a saved stream of arrays, which is used alone"):
            load("files", path=path, **options)


def test_a_split_column_counts_however_periods_are_made(tmp_path):
    rows = [
        {"client_id": "a", "text": str(k), "timestamp": k * DAY, "n": k, "split": ("train", "test")[k % 2]}
        for k in range(8)
    ]
    path = file(tmp_path, rows)
    for periods in ({"days": 8, "number": 1}, {"number": 2}, {"by": "order", "number": 2}):
        stream = load("files", path=path, columns={"order": "n"} if "by" in periods else None, periods=periods)
        assert int(stream.test.sum()) == 4
    for periods, tests in (
        ({"number": 1, "test": 0}, 0),
        ({"number": 1, "test": 0.25}, 2),
    ):  # a named share counts more
        assert int(load("files", path=path, periods=periods).test.sum()) == tests


def test_labels_that_no_client_is_given_are_left_out_and_told(tmp_path):
    path = file(tmp_path, [{"text": str(k), "period": 0, "label": f"l{k % 10}"} for k in range(100)])
    clients = {"by": "pathological", "number": 2, "labels_per_client": 2}
    with pytest.warns(DataWarning, match="rows have labels that no client was given: left out"):
        stream = load("files", path=path, clients=clients, periods={"test": 0})
    assert len(stream.clients) == 2
    assert len(stream) == 10 * len(set(stream.label.tolist())) <= 40
    rare = file(tmp_path, [{"text": str(k), "period": 0, "label": "ab"[k == 0]} for k in range(9)])
    with pytest.raises(InputError, match="clients by pathological can't be dealt out"):
        load("files", path=rare, clients={"by": "pathological", "number": 6, "labels_per_client": 1})


def test_too_many_periods_are_refused_by_name():
    for number in (0, 100_001, 10**13):
        with pytest.raises(InputError, match=f"periods.number: got {number}: must be at (least 1|most 100000)"):
            make_table(Periods, Periods(number=number), "periods")


def test_periods_without_rows_are_told(tmp_path):
    path = file(tmp_path, [{"client_id": "a", "text": str(k), "timestamp": k * DAY} for k in range(3)])
    with pytest.warns(DataWarning, match="7 of 10 periods have no row"):
        assert load("files", path=path).periods == 10


def test_rows_of_some_labels_are_dealt_out(tmp_path):
    path = file(tmp_path, [{"text": str(k), "period": 0, "label": "ab"[k % 2]} for k in range(80)])
    with pytest.warns(DataWarning, match="40 of 80 rows"):
        stream = load("files", path=path, labels=["a"], clients={"by": "iid", "number": 4}, periods={"test": 0})
    assert stream.counts("train").sum(axis=1).tolist() == [10, 10, 10, 10]
    with pytest.raises(InputError, match="labels_per_client must be at most the number of labels: got 2 for 1 labels"):
        load("files", path=path, labels=["a"], clients={"by": "pathological", "number": 4})


LABELS = [f"l{k % 10}" for k in range(4000)]


def shares(clients):
    table = np.zeros((40, 10))
    for client, label in zip(clients, LABELS, strict=True):
        table[int(client.removeprefix("client")), int(label[1:])] += 1
    return (table.max(axis=1) / np.maximum(table.sum(axis=1), 1)).mean()


def test_partitions_deal_every_row_once_and_by_the_strength_asked():
    made = {a: partition(LABELS, Clients(by="dirichlet", number=40, alpha=a)) for a in (0.1, 100.0)}
    assert all(len(clients) == len(LABELS) for clients in made.values())
    assert shares(made[0.1]) > 0.4
    assert shares(made[100.0]) < 0.2
    assert made[0.1] == partition(LABELS, Clients(by="dirichlet", number=40, alpha=0.1))
    assert made[0.1] != partition(LABELS, Clients(by="dirichlet", number=40, alpha=0.1, seed=1))
    iid = partition(LABELS, Clients(by="iid", number=40))
    assert np.unique(iid, return_counts=True)[1].tolist() == [100] * 40
    two = partition(LABELS, Clients(by="pathological", number=40, labels_per_client=2))
    assert max(len({label for c, label in zip(two, LABELS, strict=True) if c == client}) for client in set(two)) == 2
    with pytest.raises(InputError, match="at most the number of rows"):
        partition(["a"], Clients(by="iid", number=40))


def test_dealt_clients_need_no_client_column(tmp_path):
    rows = [{"text": f"t {k}", "period": k % 2, "label": f"l{k % 3}"} for k in range(300)]
    stream = load("files", path=file(tmp_path, rows), clients={"by": "dirichlet", "number": 5, "min_samples": 0})
    assert len(stream) == 300
    assert set(stream.clients) <= {f"client{k}" for k in range(5)}


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 2), st.booleans()), min_size=1, max_size=60),
    st.one_of(st.none(), st.integers(1, 4)),
    st.one_of(st.none(), st.integers(1, 4)),
    st.integers(0, 5),
)
def test_limits(rows, most, most_test, least):
    client, period, test = ([row[k] for row in rows] for k in range(3))
    rule = Clients(max_samples=most, max_test_samples=most_test, min_samples=least)
    kept, notes = limited(client, np.array(period), np.array(test), rule)
    left = [rows[k] for k in kept]
    limits = {False: most or len(rows), True: most_test or most or len(rows)}
    trained = {c: sum(min(limits[False], rows.count((c, t, False))) for t in range(3)) for c in set(client)}
    for c in set(client):
        for t in range(3):
            for split in (False, True):
                expected = min(limits[split], rows.count((c, t, split))) if trained[c] >= least else 0
                assert left.count((c, t, split)) == expected
    assert any("clients have fewer" in note for note in notes) == any(n < least for n in trained.values())


def test_small_clients_are_reported_and_some_can_be_drawn(tmp_path):
    rows = [{"client_id": f"c{k % 10}", "text": str(k), "period": 0} for k in range(200)]
    rows.append({"client_id": "lonely", "text": "hello", "period": 0})
    options = {"periods": {"test": 0}, "clients": {"min_samples": 5, "max_clients": 4}}
    with pytest.warns(DataWarning) as caught:
        stream = load("files", path=file(tmp_path, rows), **options)
    assert "1 of 11 clients have fewer than 5 training samples ('lonely'): left out with their 1 rows" in str(
        caught[0].message
    )
    assert "4 of 10 clients chosen at random" in str(caught[1].message)
    assert len(stream.clients) == 4


def test_the_first_period_may_begin_at_a_text_a_number_or_a_date():
    for start in ("2021-09-17", 1631836800, 1631836800.0, date(2021, 9, 17)):
        rule = make_table(Periods, {"by": "time", "days": 1, "start": start}, "periods")
        assert cut_by_time(np.array([1631836799, 1631836800, 1631923200]), rule).period.tolist() == [-1, 0, 1]
