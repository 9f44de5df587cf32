"""What a comparison shows, in sentences: which strategies help, and whether any beats random selection."""

from collections.abc import Sequence
from math import isfinite

from coreplay.report.compare import Group, paired
from coreplay.report.load import ANY
from coreplay.runtime.strategy import ALL, NONE

RANDOM = ("naive_uniform", "approximate_uniform", "fixed_proportion")


def summarize(group: Group) -> str:
    """Summarize a comparison; the verdicts follow from the scores of each seed, not from their means."""
    found = [text for budget in group.budgets for text in _at(group, budget)]
    many = len(group.keys)
    caution = (
        f"With {many} seeds, check the intervals in the table of differences before reading these as effects."
        if many > 1
        else "One seed cannot separate effects from chance."
    )
    return f"Findings: {'; '.join(found)}. {caution}" if found else caution


def notes(group: Group) -> list[str]:
    """Name what limits a comparison: missing seeds, diverged runs and missing test sets."""
    return [text for text in (missing_seeds(group), diverged(group), missing_tests(group)) if text]


def missing_seeds(group: Group) -> str:
    """Name the strategies that lack seeds, and how many seeds are compared; empty if none is missing."""
    found = []
    for budget in group.budgets:
        texts = []
        for label in group.labels:
            seeds = {seed for seed, _ in group.all_at(label, budget)}
            missing = [str(seed) for seed, _ in group.keys if seed not in seeds]
            if seeds and missing:
                texts.append(f"{label} lacks seed{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
        if texts:
            where = "" if budget == ANY else f"at budget {budget} "
            count = f"{len(group.compared[budget])} of {len(group.keys)} seeds are compared"
            found.append(f"{where}{'; '.join(texts)}; {count}")
    rule = "Strategies are compared on the seeds that all of them have, except full_history, which may have fewer"
    return f"{rule}: {'. '.join(found)}." if found else ""


def diverged(group: Group) -> str:
    """Name the runs whose score is not finite."""
    names = [run.name for run in group.runs if not isfinite(run.score)]
    return f"Diverged and excluded from the means: {', '.join(names)}." if names else ""


def missing_tests(group: Group) -> str:
    """Name the runs whose scores lack the test sets of some clients."""
    found = []
    for run in group.runs:
        after: dict[tuple[str, ...], list[str]] = {}
        for period, clients in run.run.summary["missing"].items():
            after.setdefault(tuple(clients), []).append(str(int(period) + 1))
        for clients, periods in after.items():
            some = ", ".join(map(repr, clients[:5])) + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")
            found.append(f"{run.name} lacks {some} after period {', '.join(periods)}")
    rule = (
        "Some scores lack the test sets of clients that did not answer. Tables mark such scores after the last period "
        "with *, and runs are compared only if they lack the same clients"
    )
    return f"{rule}: {'; '.join(found)}." if found else ""


def _at(group: Group, budget: str) -> list[str]:
    """Return the findings at a budget."""
    where = f" with a budget of {budget}" if len(group.budgets) > 1 else ""
    better: dict[str, list[str]] = {}
    unclear: list[str] = []
    worse: list[str] = []
    for label in group.labels:
        gaps = _gaps(group, label, NONE, budget)
        if label != NONE and gaps:
            helps = better.setdefault(_seeds(gaps), []) if max(gaps) < 0 else worse if min(gaps) >= 0 else unclear
            helps.append(label)
    found = [f"better than no replay {seeds}{where}: {_listed(labels)}" for seeds, labels in better.items()]
    found += [f"seeds disagree{where}: {_listed(unclear)}"] if unclear else []
    found += [f"not better than no replay{where}: {_listed(worse)}"] if worse else []
    random = [label for label in RANDOM if group.at(label, budget)]
    chosen = [label for label in group.labels if label not in (NONE, ALL, *RANDOM) and group.at(label, budget)]
    if random and chosen:
        gaps_of = {label: [_gaps(group, label, other, budget) for other in random] for label in chosen}
        best = [label for label, lists in gaps_of.items() if all(each and max(each) < 0 for each in lists)]
        names = _listed(best) if best else "no gradient-based selection"
        found.append(f"better than {_listed(random)} {_seeds(gaps_of[chosen[0]][0])}{where}: {names}")
    return found


def _seeds(gaps: Sequence[float]) -> str:
    return f"in each of {len(gaps)} seeds" if len(gaps) > 1 else "in the only seed"


def _gaps(group: Group, label: str, other: str, budget: str) -> list[float]:
    """Return the difference to another strategy per seed, below 0 where better, unless the other diverged."""
    pairs = paired(group.at(label, budget), group.at(other, budget)).values()
    sign = 1 if group.lower_is_better else -1
    return [sign * (ours.score - theirs.score) for ours, theirs in pairs if isfinite(theirs.score)]


def _listed(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
