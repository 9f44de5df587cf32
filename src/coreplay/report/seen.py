"""What a comparison shows and what it does not, in a sentence: who helps, and whether any choice beats a random one."""

from math import isfinite

from coreplay.federated.strategy import ALL, NONE
from coreplay.report.groups import Group, paired

RANDOM = ("naive_uniform", "approximate_uniform", "fixed_proportion")


def seen(group: Group) -> str:
    """Return the sentence; it follows from the figures of each seed, not from their means."""
    said = [text for budget in group.budgets for text in _at(group, budget)]
    few = len(group.keys)
    caution = (
        f"With {few} seeds, the intervals in the table of differences tell what may be chance."
        if few > 1
        else "One seed tells nothing about chance."
    )
    return f"What is seen: {'; '.join(said)}. {caution}" if said else caution


def diverged(group: Group) -> str:
    """Name the runs whose figure is no finite number: means are of the others."""
    names = [f"{r.label} (budget {r.budget}, seed {r.key[0]})" for r in group.runs if not isfinite(r.figure)]
    return f"Diverged, and not in the means: {', '.join(names)}." if names else ""


def incomplete(group: Group) -> str:
    """Name the runs whose figure lacks the test sets of some clients, and say what follows."""
    names = []
    for r in group.runs:
        after: dict[tuple[str, ...], list[str]] = {}
        for period, clients in r.run.summary["missing"].items():
            after.setdefault(tuple(clients), []).append(str(int(period) + 1))
        for clients, periods in after.items():
            some = ", ".join(map(repr, clients[:5])) + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")
            when = f"after period {', '.join(periods)}"
            names.append(f"{r.label} (budget {r.budget}, seed {r.key[0]}) lacks {some} {when}")
    rule = (
        "Some figures lack the test sets of clients that did not answer. In tables those after the last period are "
        "marked *, and runs are compared only if they lack the same"
    )
    return f"{rule}: {'; '.join(names)}." if names else ""


def _at(group: Group, budget: str) -> list[str]:
    where = f" with a budget of {budget}" if len(group.budgets) > 1 else ""
    found: dict[tuple[str, int], list[str]] = {}
    for label in group.labels:
        changes = _signed(group, label, NONE, budget)
        if label != NONE and changes:
            verdict = "helps" if max(changes) < 0 else "does not help" if min(changes) >= 0 else "unclear"
            found.setdefault((verdict, len(changes)), []).append(label)
    said = []
    for (verdict, seeds), labels in sorted(found.items(), key=lambda item: list(VERDICTS).index(item[0][0])):
        one, several = VERDICTS[verdict]
        words = (several if len(labels) > 1 else one).format(_listed(labels), seeds=_seeds(seeds))
        said.append(words + where)
    others = [label for label in RANDOM if group.at(label, budget)]
    chosen = [label for label in group.labels if label not in (NONE, ALL, *RANDOM) and group.at(label, budget)]
    if others and chosen:
        paired = {label: [_signed(group, label, other, budget) for other in others] for label in chosen}
        better = [label for label, lists in paired.items() if all(each and max(each) < 0 for each in lists)]
        against = f"{_listed(others)} {_seeds(len(paired[chosen[0]][0]))}{where}"
        if better:
            said.append(f"{_listed(better)} {'are' if len(better) > 1 else 'is'} better than {against}")
        else:
            said.append(f"no choice by gradients is better than {against}")
    return said


VERDICTS = {
    "helps": ("{} helps {seeds}", "{} help {seeds}"),
    "unclear": ("the seeds disagree about {}", "the seeds disagree about {}"),
    "does not help": ("{} does not help", "{} do not help"),
}


def _seeds(number: int) -> str:
    return f"in each of {number} seeds" if number > 1 else "in the one seed"


def _signed(group: Group, label: str, other: str, budget: str) -> list[float]:
    """Return the difference to another strategy by seed, below 0 where it is better; a diverged one is no measure."""
    pairs = paired(group.at(label, budget), group.at(other, budget)).values()
    sign = 1 if group.lower_is_better else -1
    return [sign * (ours.figure - theirs.figure) for ours, theirs in pairs if isfinite(theirs.figure)]


def _listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
