"""The numbers of the report against slow and obvious references."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from coreplay.report.charts import SeedStats
from coreplay.report.compare import difference

positive = st.floats(0.1, 1e4)
pairs = st.dictionaries(st.integers(0, 30), st.tuples(positive, positive), min_size=2, max_size=12)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_seed_stats_are_numpys(values):
    stats = SeedStats.of(values)
    assert stats.n == len(values)
    assert stats.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert stats.sd == pytest.approx(np.std(values, ddof=1), abs=1e-6)


def test_stats_of_little():
    assert SeedStats.of([math.nan, math.inf]).n == 0
    assert math.isnan(SeedStats.of([]).mean)
    assert SeedStats.of([2.0]).sd is None


@given(pairs)
def test_the_interval_of_differences_is_scipys(values):
    ours, theirs = ({k: v[side] for k, v in values.items()} for side in (0, 1))
    found = difference(ours, theirs, ratio=False, lower_is_better=True)
    gaps = [a - b for a, b in values.values()]
    assume(np.std(gaps) > 1e-3)  # scipy warns of differences that are all alike
    test = ttest_rel(list(ours.values()), list(theirs.values()))
    low, high = test.confidence_interval(0.95)
    assert found.n == len(values)
    assert (found.low, found.high) == (pytest.approx(low, rel=1e-6, abs=1e-6), pytest.approx(high, rel=1e-6, abs=1e-6))
    clear = test.pvalue < 0.05
    if abs(test.pvalue - 0.05) > 1e-6:
        assert (found.word != "unclear") == clear
        assert not clear or found.word == ("better" if found.mean < 0 else "worse")


@given(pairs)
def test_ratios_are_differences_of_logarithms(values):
    ours, theirs = ({k: v[side] for k, v in values.items()} for side in (0, 1))
    logs = [{k: math.log(v) for k, v in side.items()} for side in (ours, theirs)]
    ratio = difference(ours, theirs, ratio=True, lower_is_better=True)
    plain = difference(*logs, ratio=False, lower_is_better=True)
    for name in ("mean", "low", "high"):
        expected = math.expm1(min(getattr(plain, name), 700))
        assert getattr(ratio, name) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    sharp = min(abs(plain.low), abs(plain.high)) > 1e-9  # an end at 0 may fall on either side of it
    assert not sharp or ratio.word == plain.word


def test_only_seeds_that_both_have_count_and_the_word_knows_what_is_better():
    ours, theirs = {0: 80.0, 1: 81.0, 2: 79.0, 7: 1.0}, {0: 100.0, 1: 100.0, 2: 100.0, 9: 1.0}
    assert difference(ours, theirs, ratio=True, lower_is_better=True).n == 3
    assert difference(ours, theirs, ratio=True, lower_is_better=True).word == "better"
    assert difference(ours, theirs, ratio=False, lower_is_better=False).word == "worse"
    assert difference({0: 1.0}, {0: 2.0}, ratio=True, lower_is_better=True).word == "unclear"
    assert difference({0: 1.0}, {1: 2.0}, ratio=True, lower_is_better=True) is None
    assert difference({0: 0.0}, {0: 2.0}, ratio=True, lower_is_better=True) is None
