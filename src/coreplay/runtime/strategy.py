"""Strategies: what a buffer keeps. None, everything, a selector's choice, or the clients' joint choice."""

from typing import Any

from coreplay.coordination import coordination_methods, make_method
from coreplay.coordination.method import check_quota
from coreplay.errors import unknown
from coreplay.selection import check_method, selectors

NONE, ALL = "none", "full_history"


def strategies() -> dict[str, str]:
    """Return the names of all strategies with a one-line description of each.

    >>> list(strategies())[:2]
    ['none', 'full_history']
    """
    own = {NONE: "Keep nothing: train on new data alone.", ALL: "Keep everything, whatever the budget."}
    return own | selectors() | coordination_methods()


def is_coordinated(strategy: str) -> bool:
    """Say whether clients choose jointly under this strategy."""
    return strategy in coordination_methods()


def check_strategy(strategy: str, options: dict[str, Any], quota: str = "none") -> None:
    """Raise an `InputError` for an unknown strategy, or an option or a quota that it does not have."""
    if strategy not in strategies():
        raise unknown("strategy", strategy, strategies())
    if strategy in (NONE, ALL):
        if options:
            raise unknown("option", next(iter(options)), [], of=f" of strategy {strategy!r}")
    elif is_coordinated(strategy):
        check_quota(quota, make_method(strategy, **options))
    else:
        check_method(strategy, options)
