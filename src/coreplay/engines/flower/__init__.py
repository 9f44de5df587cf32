"""Flower: the same run on a distributed engine, and pieces for people who have their own Flower app."""

from coreplay.engines.flower.apps import client_app, server_app
from coreplay.engines.flower.pieces import Choice, Memory, choose_jointly, period_of

__all__ = ["Choice", "Memory", "choose_jointly", "client_app", "period_of", "server_app"]
