"""The sentence follows from the numbers of each seed."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from coreplay.report.compare import group_runs
from coreplay.report.figures import by_test_period
from coreplay.report.load import Finished
from coreplay.report.tables import differences, diverged, missing_seeds, missing_tests, results, summarize
from coreplay.runtime import Config, Run
from coreplay.tasks import PeriodMatrix


def finished(config, metric, values, whole, lower_is_better, missing=()):
    """Make a run with these figures; `missing` are clients whose test sets are not in the last ones."""
    means = np.full(len(values), whole)
    matrix = PeriodMatrix(np.array(values), means, means, lower_is_better, np.zeros(np.shape(values), int))
    summary = {"metric": metric, "compared_by_ratio": lower_is_better, "seconds": {}}
    summary["missing"] = {str(len(values) - 1): list(missing)} if missing else {}
    return Finished.of(Run(Path(), summary, matrix), config, {}, (), ())


def made(finals, budgets=(20,), methods=None):
    """Make a group of runs with these perplexities, one per seed, and with the continual methods of each strategy."""
    runs = []
    for strategy, values in finals.items():
        for seed, value in enumerate(values):
            for budget in budgets:
                continual = {"methods": (methods or {}).get(strategy, [])}
                replay = {"strategy": strategy, "budget": budget}
                config = Config.make({"replay": replay, "seed": seed, "continual": continual})
                runs.append(finished(config, "perplexity", [[value]], value, True))
    return group_runs(runs)[0]


def test_the_sentence_follows_from_the_numbers():
    clear = summarize(
        made({"none": [100, 100], "naive_uniform": [80, 90], "polished": [70, 80], "full_history": [50, 50]})
    )
    assert "better than no replay in each of 2 seeds: `polished`, `naive_uniform` and `full_history`" in clear
    assert "better than `naive_uniform` in each of 2 seeds: `polished`" in clear
    mixed = summarize(made({"none": [100, 100], "naive_uniform": [80, 90], "polished": [70, 101]}))
    assert "better than no replay in each of 2 seeds: `naive_uniform`; seeds disagree: `polished`" in mixed
    assert "better than `naive_uniform` in each of 2 seeds: no gradient-based selection" in mixed
    assert "Findings: not better than no replay: `naive_uniform`." in summarize(
        made({"none": [100, 100], "naive_uniform": [110, 101]})
    )
    assert "in the only seed" in summarize(made({"none": [100], "naive_uniform": [80]}))


def test_runs_that_all_have_the_same_methods_are_compared_with_none_and_these_methods():
    finals = {"none": [100, 100], "naive_uniform": [80, 90]}
    group = made(finals, methods={"none": ["l2"], "naive_uniform": ["l2"]})
    assert group.base_label == "none + l2"
    assert "better than no replay in each of 2 seeds: `naive_uniform + l2`" in summarize(group)
    assert not made(finals, methods={"none": ["l2"]}).base, "the others have no l2"


def test_all_choices_are_looked_at_and_all_random_ones():
    finals = {"none": [100, 100], "naive_uniform": [80, 80], "polished": [60, 80.1], "gss_greedy": [79, 79]}
    assert "better than `naive_uniform` in each of 2 seeds: `gss_greedy`" in summarize(made(finals))
    both = summarize(made(finals | {"approximate_uniform": [78, 90]}))
    assert (
        "better than `naive_uniform` and `approximate_uniform` in each of 2 seeds: no gradient-based selection" in both
    )


def test_strategies_are_compared_on_the_seeds_that_all_have():
    group = made({"none": [100, 90, 80], "naive_uniform": [80, 70, 10], "polished": [75, 65], "full_history": [50]})
    text = summarize(group)
    assert "better than no replay in each of 2 seeds: `polished` and `naive_uniform`" in text
    assert "better than no replay in the only seed: `full_history`" in text
    assert "polished lacks seed 2; full_history lacks seeds 1, 2; 2 of 3 seeds are compared" in missing_seeds(group)
    rows = {record["strategy"]: record for record in results(group).records}
    assert rows["naive_uniform"]["perplexity"] == pytest.approx(75)
    assert (rows["naive_uniform"]["seeds"], rows["full_history"]["seeds"]) == (2, 1)
    apart = made({"none": [100, 90], "polished": [70, 60]})
    assert missing_seeds(apart) == ""


def test_numbers_of_a_column_have_the_same_decimals():
    group = made({"none": [297.3112, 300.0], "polished": [9.6, 12.0]})
    assert [row[2] for row in results(group).rows] == ["298.7 ± 1.9", "10.8 ± 1.7"]
    assert all(row[6].count(".") == results(group).rows[0][6].count(".") for row in results(group).rows)


def test_a_run_that_diverged_is_named():
    group = made({"none": [100, 100], "polished": [70, np.inf]})
    assert diverged(group) == "Diverged and excluded from the means: polished (budget 20, seed 1)."


def test_figures_on_different_test_sets_are_marked_and_not_compared():
    runs = [
        finished(Config.make({"replay": {"strategy": name}, "seed": seed}), "perplexity", [[value]], value, True, lacks)
        for name, seed, value, lacks in (
            ("none", 0, 100, ()),
            ("none", 1, 100, ()),
            ("polished", 0, 80, ()),
            ("polished", 1, 10, ("ann", "bo")),
        )
    ]
    group = group_runs(runs)[0]
    rows = {record["strategy"]: record for record in results(group).records}
    assert rows["polished"]["relative_change"] == pytest.approx(-0.2), "the second seed has another test set"
    assert [row[2] for row in results(group).rows] == ["100.0 ± 0.0", "45.0 ± 49.5*"]
    assert differences(group).records[0]["n"] == 1
    assert "polished (budget 20, seed 1) lacks 'ann', 'bo'" in missing_tests(group)
    assert "better than no replay in the only seed: `polished`" in summarize(group), (
        "the other seed has other test sets"
    )
    assert missing_tests(group_runs(runs[:3])[0]) == ""
    runs[0].run.summary["missing"] = {"0": ["ann"], "1": ["ann"], "2": ["bo"]}
    said = missing_tests(group_runs(runs[:3])[0])
    assert "seed 0) lacks 'ann' after period 1, 2; " in said, "earlier figures are drawn over time"
    assert "seed 0) lacks 'bo' after period 3." in said


def test_nothing_is_relative_to_what_diverged():
    group = made({"none": [np.inf, 100], "polished": [70, 110]})
    rows = {record["strategy"]: record for record in results(group).records}
    assert rows["polished"]["relative_change"] == pytest.approx(0.1)
    assert "not better than no replay: `polished`" in summarize(group)


def test_an_accuracy_of_zero_is_no_base():
    def accuracy(strategy, right):
        config = Config.make({"replay": {"strategy": strategy}})
        return finished(config, "accuracy", [right, right], sum(right) / 2, False)

    nothing = group_runs([accuracy("none", [0.0, 0.0]), accuracy("polished", [0.5, 0.7])])[0]
    assert "better than no replay in the only seed: `polished`" in summarize(nothing)
    assert nothing.changes(nothing.at("polished", "20")) == {}
    half = group_runs([accuracy("none", [0.0, 0.9]), accuracy("polished", [0.5, 0.9])])[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = by_test_period(half)
    assert "A period on which no replay scores 0 has no point" in figure.reading
    same = next(panel for panel in figure.panels if "same" in panel.choice["relative to"])
    assert [series.x for series in same.chart.series if series.label == "polished"] == [(2,)]


def test_without_anything_to_compare_with_there_is_only_the_caution():
    assert summarize(made({"polished": [70, 80]})).startswith("With 2 seeds")


def test_budgets_are_told_apart():
    text = summarize(made({"none": [100], "polished": [70]}, budgets=(5, 20)))
    assert "with a budget of 5" in text
    assert "with a budget of 20" in text
