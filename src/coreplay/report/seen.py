"""What a comparison shows and what it does not, in a sentence: who helps, and whether any choice beats a random one."""

from statistics import fmean

from coreplay.federated.strategy import ALL, NONE
from coreplay.report.groups import Group

RANDOM = "naive_uniform"


def seen(group: Group) -> str:
    """Return the sentence; it follows from the figures of each seed, not from their means."""
    said = [text for budget in group.budgets for text in _at(group, budget)]
    few = len(group.keys)
    caution = f"With {few} seed{'s' if few > 1 else ''} differences of a few percent between buffers prove nothing."
    return f"What is seen: {'; '.join(said)}. {caution}" if said else caution


def _at(group: Group, budget: str) -> list[str]:
    where = f" with a budget of {budget}" if len(group.budgets) > 1 else ""
    helpful: list[str] = []
    useless: list[str] = []
    unclear: list[str] = []
    for label in group.labels:
        changes = _signed(group, label, NONE, budget)
        if label == NONE or not changes:
            continue
        (helpful if max(changes) < 0 else useless if min(changes) >= 0 else unclear).append(label)
    always = "in every seed" if len(group.keys) > 1 else "in this one seed"
    said = []
    if helpful:
        said.append(f"{_listed(helpful)} {'help' if len(helpful) > 1 else 'helps'} {always}{where}")
    if unclear:
        said.append(f"the seeds disagree about {_listed(unclear)}{where}")
    if useless:
        said.append(f"{_listed(useless)} {'do' if len(useless) > 1 else 'does'} not help{where}")
    chosen = {
        label: changes
        for label in group.labels
        if label not in (NONE, ALL, RANDOM) and (changes := _signed(group, label, RANDOM, budget))
    }
    if chosen:
        best = min(chosen, key=lambda label: fmean(chosen[label]))
        if max(chosen[best]) < 0:
            said.append(f"`{best}` is {-fmean(chosen[best]):.1%} better than a random choice of the same size{where}")
        else:
            said.append(f"no choice is better than a random one of the same size in every seed{where}")
    return said


def _signed(group: Group, label: str, other: str, budget: str) -> list[float]:
    """Return the change to another strategy by seed, below 0 where it is better."""
    ours, theirs = group.at(label, budget), group.at(other, budget)
    sign = 1 if group.lower_is_better else -1
    return [sign * (run.figure / theirs[key].figure - 1) for key, run in ours.items() if key in theirs]


def _listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
