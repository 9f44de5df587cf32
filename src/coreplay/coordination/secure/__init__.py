"""The secure sum: the server learns the sum of the vectors of those who answered, and of no one alone."""

from coreplay.coordination.secure.client import SecureClient
from coreplay.coordination.secure.server import ImpossibleSumError, SecureServer, ThresholdError, default_threshold

__all__ = ["ImpossibleSumError", "SecureClient", "SecureServer", "ThresholdError", "default_threshold"]
