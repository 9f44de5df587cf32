"""Flower: the same run on a distributed engine, and pieces for people who have their own Flower app."""

from typing import TYPE_CHECKING

from coreplay import lazy_getattr

if TYPE_CHECKING:
    from coreplay.flower.app import client_app, server_app
    from coreplay.flower.replay import ReplayBuffer, period_of
    from coreplay.flower.selection import SelectionResult, choose_jointly, next_period

__all__ = ["ReplayBuffer", "SelectionResult", "choose_jointly", "client_app", "next_period", "period_of", "server_app"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "app": ("client_app", "server_app"),
        "replay": ("ReplayBuffer", "period_of"),
        "selection": ("SelectionResult", "choose_jointly", "next_period"),
    },
)
