"""The near-optimality experiment: right and repeatable."""

import numpy as np
import pytest

import coreplay
from coreplay import InputError
from coreplay.experiments import near_optimality
from coreplay.experiments.near_optimality import NearOptimality, draw, one_repeat, run
from coreplay.report.studies import write_study
from tests.selection.problems import best_by_enumeration, unit

pytestmark = pytest.mark.xdist_group("near_optimality")
SMALL = NearOptimality(sizes=(8, 12), budget=3, repeats=30, dimension=20, mixture="uncentred")


@pytest.fixture(scope="module")
def small():
    """Give each worker several chunks of the repeats."""
    counts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_optimality, "CHUNK", 8)
        result = run(SMALL, workers=2, progress=lambda done, total: counts.append((done, total)))
    assert counts[-1] == (60, 60)
    return result


def test_ratios_are_to_the_true_optimum():
    config = NearOptimality(sizes=(9,), budget=3, repeats=1, methods=("relaxation", "exact", "naive_uniform"))
    for repeat in range(5):
        ratios, seconds = one_repeat(config, 9, repeat)
        rows = unit(draw(coreplay.seeding.generator(0, "mixture", 9, repeat), 9, "literal"))
        assert len(seconds) == 4
        assert ratios[1] == pytest.approx(1)
        assert ratios.min() >= 1 - 1e-9
        kept = coreplay.select(rows, budget=3, method="exact")
        assert coreplay.objective(rows, kept) == pytest.approx(best_by_enumeration(rows @ rows.T, 3))


def test_the_result_does_not_depend_on_the_number_of_workers(small):
    alone = run(SMALL, workers=1)
    for n in SMALL.sizes:
        assert (alone.ratios[n] == small.ratios[n]).all()
        for repeat in (0, 29):
            assert (one_repeat(SMALL, n, repeat)[0] == small.ratios[n][:, repeat]).all()


def test_the_report_holds_table_json_and_figures(small, tmp_path):
    result = small
    text, paths = write_study(result, tmp_path)
    assert {p.name for p in paths} == {"results.json", "table.md"} | {
        f"ratios-n{n}.{suffix}" for n in (8, 12) for suffix in ("png", "svg")
    }
    assert (tmp_path / "ratios-n8.png").read_bytes().startswith(b"\x89PNG")
    assert ">naive_uniform</text>" in (tmp_path / "ratios-n8.svg").read_text()
    assert "| exact | 1.0000 | 1.0000 | 1.0000 | 100.0% |" in text
    row = next(r for r in result.rows if r.n == 8 and r.method == "naive_uniform")
    k = SMALL.methods.index("naive_uniform")
    assert row.mean == pytest.approx(result.ratios[8][k].mean())
    assert row.p95 == pytest.approx(np.quantile(result.ratios[8][k], 0.95))
    again = tmp_path / "again"
    write_study(result, again)
    assert (again / "ratios-n8.svg").read_bytes() == (tmp_path / "ratios-n8.svg").read_bytes()


def test_mixtures_are_as_the_appendix_says():
    literal = draw(np.random.default_rng(3), 40, "literal")
    assert literal.mean(axis=0) == pytest.approx(np.zeros(300), abs=1e-12)
    assert literal.std(axis=0) == pytest.approx(np.ones(300))
    uncentred = draw(np.random.default_rng(3), 40, "uncentred")
    assert np.abs(uncentred.mean(axis=0)).max() > 0.5
    one_centre = next(seed for seed in range(500) if np.random.default_rng(seed).poisson(4) == 0)
    assert np.isfinite(draw(np.random.default_rng(one_centre), 10, "literal")).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mixture": "litteral"}, "unknown mixture 'litteral': did you mean 'literal'"),
        ({"sizes": (5,)}, "n must be larger than the budget: got 5"),
        ({"sizes": ()}, "n is missing"),
        ({"repeats": 0}, "repeats must be at least 1"),
        (
            {"methods": ("fixed_proportion",)},
            "nothing else: method 'fixed_proportion' needs to know which samples are new",
        ),
        ({"methods": ("nonsense",)}, "unknown method"),
    ],
)
def test_wrong_parameters_are_refused_before_work(wrong, message):
    with pytest.raises(InputError, match=message):
        NearOptimality(**wrong)
