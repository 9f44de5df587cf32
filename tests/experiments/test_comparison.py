"""Comparisons: the same start for all, nothing done twice, and a sentence that follows from the numbers."""

import json

import pytest

from coreplay.display import following
from coreplay.errors import InputError
from coreplay.experiments.comparison import Comparison, ComparisonResult, Outcome, compare
from coreplay.federated import Config
from coreplay.report.comparison import markdown, seen, write

TINY = Config.make(
    {
        "stream": {"options": {"clients": 4, "periods": 2, "samples": 10}},
        "task": {"options": {"layers": 1, "hidden": 16, "heads": 2, "feed_forward": 32, "vocabulary_size": 300}},
        "federated": {"rounds": 1},
        "replay": {"budget": 2, "rounds": 1},
        "gradients": {"size": 32},
        "engine": {"workers": 1},
    }
)


def test_runs_are_paired_reused_and_reported(tmp_path):
    plan = Comparison(TINY, ("none", "naive_uniform", "full_history"), (0, 1))
    said = []
    result = compare(plan, tmp_path / "runs", watch=following, say=said.append)
    assert result.reused == 0
    for seed in range(2):  # before anything is kept, strategies are the same run
        assert len({outcome.figures[seed][0] for outcome in result.outcomes}) == 1
    assert len({outcome.figures[0][1] for outcome in result.outcomes}) == 3
    assert result.of("none").figures[0] != result.of("none").figures[1]
    assert result.changes("none") == [0, 0]
    paths = write(result, tmp_path)
    assert [path.name for path in paths] == ["results.json", "table.md", "comparison.png", "comparison.svg"]
    assert json.loads(paths[0].read_text())["seeds"] == [0, 1]

    logs = {path: path.read_text() for path in tmp_path.glob("runs/*/run.log")}
    again = compare(plan, tmp_path / "runs", watch=following, say=said.append)
    assert again.reused == 6
    assert any("6 of 6 runs are finished" in line for line in said)
    assert {path: path.read_text() for path in logs} == logs
    assert again.outcomes == result.outcomes

    other = Comparison(TINY.model_copy(update={"periods": 1}), ("none",), (0,))
    with pytest.raises(InputError, match="another configuration"):
        compare(other, tmp_path / "runs", watch=following, say=said.append)


def made(finals):
    outcomes = [
        Outcome(name, [[100.0, value] for value in values], [1.0] * len(values), [2.0] * len(values))
        for name, values in finals.items()
    ]
    seeds = tuple(range(len(next(iter(finals.values())))))
    versions = {"coreplay": "0", "torch": "0"}
    return ComparisonResult(Comparison(TINY, tuple(finals), seeds), "perplexity", True, outcomes, versions, 0)


def test_the_sentence_follows_from_the_numbers():
    clear = made({"none": [100, 100], "naive_uniform": [80, 90], "polished": [70, 80], "full_history": [50, 50]})
    assert "`naive_uniform`, `polished` and `full_history` help in every seed" in seen(clear)
    assert "`polished` is 11.8% better than a random choice" in seen(clear)
    mixed = made({"none": [100, 100], "naive_uniform": [80, 90], "polished": [70, 101]})
    assert "`naive_uniform` helps in every seed; the seeds disagree about `polished`" in seen(mixed)
    assert "no choice is better than a random one of the same size in every seed" in seen(mixed)
    worse = made({"none": [100, 100], "naive_uniform": [110, 101]})
    assert "What is seen: `naive_uniform` does not help." in seen(worse)
    single = made({"none": [100], "naive_uniform": [80]})
    assert "in this one seed" in seen(single)
    assert "| `naive_uniform` | 80 | -20.0% | 1 | 2.0 |" in markdown(single)


def test_a_comparison_is_checked_before_work():
    with pytest.raises(InputError, match="did you mean 'polished'"):
        Comparison(TINY, ("none", "polishd"), (0,))
    with pytest.raises(InputError, match="each once"):
        Comparison(TINY, ("none", "none"), (0,))
