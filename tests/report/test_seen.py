"""The sentence follows from the numbers of each seed."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from coreplay.federated import Config, Run
from coreplay.report.gather import Finished
from coreplay.report.groups import grouped
from coreplay.report.results import by_test_period
from coreplay.report.seen import diverged, incomplete, seen
from coreplay.report.tables import differences, results
from coreplay.tasks import PeriodMatrix


def finished(config, metric, values, whole, lower_is_better, missing=()):
    """Make a run with these figures; `missing` are clients whose test sets are not in the last ones."""
    means = np.full(len(values), whole)
    matrix = PeriodMatrix(np.array(values), means, means, lower_is_better, np.zeros(np.shape(values), int))
    summary = {"metric": metric, "compared_by_ratio": lower_is_better, "seconds": {}}
    summary["missing"] = {str(len(values) - 1): list(missing)} if missing else {}
    return Finished(Run(Path(), summary, matrix), config, {}, (), ())


def made(finals, budgets=(20,)):
    """Make a group of runs with these perplexities, one a seed."""
    runs = []
    for strategy, values in finals.items():
        for seed, value in enumerate(values):
            for budget in budgets:
                config = Config.make({"replay": {"strategy": strategy, "budget": budget}, "seed": seed})
                runs.append(finished(config, "perplexity", [[value]], value, True))
    return grouped(runs)[0]


def test_the_sentence_follows_from_the_numbers():
    clear = seen(made({"none": [100, 100], "naive_uniform": [80, 90], "polished": [70, 80], "full_history": [50, 50]}))
    assert "`polished`, `naive_uniform` and `full_history` help in each of 2 seeds" in clear
    assert "`polished` is better than `naive_uniform` in each of 2 seeds" in clear
    mixed = seen(made({"none": [100, 100], "naive_uniform": [80, 90], "polished": [70, 101]}))
    assert "`naive_uniform` helps in each of 2 seeds; the seeds disagree about `polished`" in mixed
    assert "no choice by gradients is better than `naive_uniform` in each of 2 seeds" in mixed
    assert "What is seen: `naive_uniform` does not help." in seen(
        made({"none": [100, 100], "naive_uniform": [110, 101]})
    )
    assert "in the one seed" in seen(made({"none": [100], "naive_uniform": [80]}))


def test_all_choices_are_looked_at_and_all_random_ones():
    finals = {"none": [100, 100], "naive_uniform": [80, 80], "polished": [60, 80.1], "gss_greedy": [79, 79]}
    assert "`gss_greedy` is better than `naive_uniform` in each of 2 seeds" in seen(made(finals))
    both = seen(made(finals | {"approximate_uniform": [78, 90]}))
    assert "no choice by gradients is better than `naive_uniform` and `approximate_uniform` in each of 2 seeds" in both


def test_strategies_are_compared_on_the_seeds_that_all_have():
    group = made({"none": [100, 90, 80], "naive_uniform": [80, 70, 10], "polished": [75, 65], "full_history": [50]})
    text = seen(group)
    assert "`polished` and `naive_uniform` help in each of 2 seeds" in text
    assert "`full_history` helps in the one seed" in text
    assert "polished lacks seed 2; full_history lacks seed 1, 2; compared are 2 of 3" in group.lacking()
    rows = {record["strategy"]: record for record in results(group).records}
    assert rows["naive_uniform"]["perplexity"] == pytest.approx(75)
    assert (rows["naive_uniform"]["seeds"], rows["full_history"]["seeds"]) == (2, 1)
    apart = made({"none": [100, 90], "polished": [70, 60]})
    assert apart.lacking() == ""


def test_numbers_of_a_column_have_the_same_decimals():
    group = made({"none": [297.3112, 300.0], "polished": [9.6, 12.0]})
    assert [row[2] for row in results(group).rows] == ["298.7 ± 1.9", "10.8 ± 1.7"]
    assert all(row[6].count(".") == results(group).rows[0][6].count(".") for row in results(group).rows)


def test_a_run_that_diverged_is_named():
    group = made({"none": [100, 100], "polished": [70, np.inf]})
    assert diverged(group) == "Diverged, and not in the means: polished (budget 20, seed 1)."


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
    group = grouped(runs)[0]
    rows = {record["strategy"]: record for record in results(group).records}
    assert rows["polished"]["relative_change"] == pytest.approx(-0.2), "the second seed has another test set"
    assert [row[2] for row in results(group).rows] == ["100.0 ± 0.0", "45.0 ± 49.5*"]
    assert differences(group).records[0]["n"] == 1
    assert "polished (budget 20, seed 1) lacks 'ann', 'bo'" in incomplete(group)
    assert "`polished` helps in the one seed" in seen(group), "the other seed has other test sets"
    assert incomplete(grouped(runs[:3])[0]) == ""
    runs[0].run.summary["missing"] = {"0": ["ann"], "1": ["ann"], "2": ["bo"]}
    said = incomplete(grouped(runs[:3])[0])
    assert "seed 0) lacks 'ann' after period 1, 2; " in said, "earlier figures are drawn over time"
    assert "seed 0) lacks 'bo' after period 3." in said


def test_nothing_is_relative_to_what_diverged():
    group = made({"none": [np.inf, 100], "polished": [70, 110]})
    rows = {record["strategy"]: record for record in results(group).records}
    assert rows["polished"]["relative_change"] == pytest.approx(0.1)
    assert "`polished` does not help" in seen(group)


def test_an_accuracy_of_zero_is_no_base():
    def accuracy(strategy, right):
        config = Config.make({"replay": {"strategy": strategy}})
        return finished(config, "accuracy", [right, right], sum(right) / 2, False)

    nothing = grouped([accuracy("none", [0.0, 0.0]), accuracy("polished", [0.5, 0.7])])[0]
    assert "`polished` helps in the one seed" in seen(nothing)
    assert nothing.changes(nothing.at("polished", "20")) == {}
    half = grouped([accuracy("none", [0.0, 0.9]), accuracy("polished", [0.5, 0.9])])[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = by_test_period(half)
    assert "A period on which no replay gets 0 has no point" in figure.reading
    same = next(panel for panel in figure.panels if "same" in panel.choice["relative to"])
    assert [series.x for series in same.chart.series if series.label == "polished"] == [(2,)]


def test_without_anything_to_compare_with_there_is_only_the_caution():
    assert seen(made({"polished": [70, 80]})).startswith("With 2 seeds")


def test_budgets_are_told_apart():
    text = seen(made({"none": [100], "polished": [70]}, budgets=(5, 20)))
    assert "with a budget of 5" in text
    assert "with a budget of 20" in text
