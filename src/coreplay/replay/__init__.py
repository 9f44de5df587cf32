"""Replay: the buffer that a client keeps, and its crash-safe store."""

from coreplay.codec import decode, encode
from coreplay.replay.buffer import Buffer, Item
from coreplay.replay.database import ReplayError
from coreplay.replay.store import Store, path_for

__all__ = ["Buffer", "Item", "ReplayError", "Store", "decode", "encode", "path_for"]
