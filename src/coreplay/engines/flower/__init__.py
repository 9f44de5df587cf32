"""Flower: the same run on a distributed engine, and pieces for people who have their own Flower app."""

from typing import TYPE_CHECKING

from coreplay.lazy import lazily

if TYPE_CHECKING:
    from coreplay.engines.flower.apps import client_app as client_app
    from coreplay.engines.flower.apps import server_app as server_app
    from coreplay.engines.flower.choosing import Choice as Choice
    from coreplay.engines.flower.choosing import choose_jointly as choose_jointly
    from coreplay.engines.flower.choosing import next_period as next_period
    from coreplay.engines.flower.pieces import Memory as Memory
    from coreplay.engines.flower.pieces import period_of as period_of

__all__ = ["Choice", "Memory", "choose_jointly", "client_app", "next_period", "period_of", "server_app"]

__getattr__ = lazily(
    __name__,
    dict.fromkeys(("client_app", "server_app"), "coreplay.engines.flower.apps")
    | dict.fromkeys(("Choice", "choose_jointly", "next_period"), "coreplay.engines.flower.choosing")
    | dict.fromkeys(("Memory", "period_of"), "coreplay.engines.flower.pieces"),
)
