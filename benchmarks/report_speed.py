"""How long a report on 100 runs takes, and how long its page takes to open: python -m benchmarks.report_speed.

Two small real runs, one without replay and one coordinated, are copied into 100 folders that differ in strategy, budget
and seed, with figures altered at random; their metrics have ten periods. The page is opened in headless Chromium, a new
profile each time; the time goes from navigation until the page is complete.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from tests.report.chromium import chromium
from tests.report.making import TINY, make_runs

from benchmarks.common import header
from coreplay.report.api import write
from coreplay.runtime import Config

PERIODS = 10
STRATEGIES = ("naive_uniform", "gss_greedy", "relaxation", "polished", "alternating", "corrective")
BUDGETS = (5, 20, 50)
SEEDS = 5


def plans() -> list[dict[str, object]]:
    """Return what the runs differ in: 5 seeds x (3 budgets x 6 strategies + none + full_history)."""
    places: list[tuple[str, int]] = [("none", 5), ("full_history", 5)]
    places += [(strategy, budget) for budget in BUDGETS for strategy in STRATEGIES]
    return [
        {"replay.strategy": strategy, "replay.budget": budget, "seed": seed}
        for strategy, budget in places
        for seed in range(SEEDS)
    ]


def alter(path: Path, plan: dict[str, object], rng: np.random.Generator) -> None:
    """Give a copied run another configuration and other figures."""
    config = Config.load(path / "config.toml", plan)
    (path / "config.toml").write_text(config.toml())
    totals = rng.uniform(4.6, 5.0, (PERIODS, PERIODS)) * 100
    rows = [
        {
            "period": t,
            "test_period": s,
            "total": totals[t, s],
            "weight": 100.0,
            "perplexity": float(np.exp(totals[t, s] / 100)),
        }
        for t in range(PERIODS)
        for s in range(PERIODS)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = json.loads((path / "summary.json").read_text())
    figures = np.exp(totals.mean(axis=1) / 100).tolist()
    summary["metrics"] = dict.fromkeys(summary["metrics"], figures)
    (path / "summary.json").write_text(json.dumps(summary))
    kept = [
        {"period": t, "clients": 5, "kept": 10 * (t + 1), "arrived": [10] * (t + 1), "distinct": 9 * (t + 1)}
        for t in range(PERIODS - 1)
    ]
    if plan["replay.strategy"] != "none":
        (path / "buffers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    if plan["replay.strategy"] not in ("alternating", "corrective"):
        (path / "coordination.jsonl").unlink(missing_ok=True)


def make(folder: Path) -> Path:
    """Make the 100 folders."""
    changes: tuple[dict[str, object], ...] = ({"replay.strategy": "none"}, {"replay.strategy": "corrective"})
    real = make_runs(folder / "real", (0,), TINY, changes)
    rng = np.random.default_rng(0)
    for k, plan in enumerate(plans()):
        source = "none" if plan["replay.strategy"] == "none" else "corrective"
        path = folder / "runs" / f"{k:03}"
        shutil.copytree(real / f"{source}-seed0", path)
        alter(path, plan, rng)
    return folder / "runs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="times that the page is opened")
    given = parser.parse_args()
    header("matplotlib", "selenium")
    with tempfile.TemporaryDirectory() as name:
        runs = make(Path(name))
        before, began = os.times(), time.perf_counter()
        report = write([runs], Path(name) / "report")
        seconds, after = time.perf_counter() - began, os.times()
        spent = after.user + after.system - before.user - before.system
        count = sum(len(section.group.runs) for section in report.sections)
        views = sum(len(figure.panels) for section in report.sections for figure in section.figures)
        load = os.getloadavg()[0]
        print(f"load of the machine: {load:.1f} on {os.cpu_count()} cores, niceness {os.nice(0)}")
        print(f"report on {count} runs: {seconds:.1f} s ({spent:.1f} s of processor time) (asked: < 60 s)")
        print(f"{len(report.files)} files, {views} views, page of {report.page.stat().st_size / 1e6:.1f} MB")
        print(f"memory at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
        times = []
        for _ in range(given.repeats):
            with chromium() as browser:
                times.append(browser.open(report.page))
        each = ", ".join(f"{value:.2f}" for value in times)
        print(f"page, from navigation until it is complete: median {statistics.median(times):.2f} s ({each})")
        print("asked: opens in less than 2 s")


if __name__ == "__main__":
    main()
