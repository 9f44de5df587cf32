"""The sentence follows from the numbers of each seed."""

from pathlib import Path

import numpy as np

from coreplay.federated import Config, Run
from coreplay.report.gather import Finished
from coreplay.report.groups import grouped
from coreplay.report.seen import seen
from coreplay.tasks import PeriodMatrix


def made(finals, budgets=(20,)):
    """Make a group of runs with these perplexities, one a seed."""
    runs = []
    for strategy, values in finals.items():
        for seed, value in enumerate(values):
            for budget in budgets:
                config = Config.make({"replay": {"strategy": strategy, "budget": budget}, "seed": seed})
                matrix = PeriodMatrix(np.array([[np.log(value)]]), np.array([[1.0]]), True, True)
                runs.append(Finished(Run(Path(), {"metric": "perplexity"}, matrix), config, {}, (), ()))
    return grouped(runs)[0]


def test_the_sentence_follows_from_the_numbers():
    clear = seen(made({"none": [100, 100], "naive_uniform": [80, 90], "polished": [70, 80], "full_history": [50, 50]}))
    assert "`polished`, `naive_uniform` and `full_history` help in every seed" in clear
    assert "`polished` is 11.8% better than a random choice" in clear
    mixed = seen(made({"none": [100, 100], "naive_uniform": [80, 90], "polished": [70, 101]}))
    assert "`naive_uniform` helps in every seed; the seeds disagree about `polished`" in mixed
    assert "no choice is better than a random one of the same size in every seed" in mixed
    assert "What is seen: `naive_uniform` does not help." in seen(
        made({"none": [100, 100], "naive_uniform": [110, 101]})
    )
    assert "in this one seed" in seen(made({"none": [100], "naive_uniform": [80]}))


def test_without_anything_to_compare_with_there_is_only_the_caution():
    assert seen(made({"polished": [70, 80]})).startswith("With 2 seeds")


def test_budgets_are_told_apart():
    text = seen(made({"none": [100], "polished": [70]}, budgets=(5, 20)))
    assert "with a budget of 5" in text
    assert "with a budget of 20" in text
