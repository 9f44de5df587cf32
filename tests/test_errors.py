"""Errors that name what is wrong, and what was probably meant."""

import pytest

from coreplay.errors import unknown
from coreplay.runtime import Config, strategies
from coreplay.runtime.config import EngineConfig, ReplayConfig


@pytest.mark.parametrize(
    ("wrong", "meant", "known"),
    [
        ("polishd", "polished", strategies()),
        ("corective", "corrective", strategies()),
        ("budjet", "budget", ReplayConfig.model_fields),
        ("stratgy", "strategy", ReplayConfig.model_fields),
        ("repaly", "replay", Config.model_fields),
    ],
)
def test_what_is_near_is_suggested(wrong, meant, known):
    assert f"did you mean '{meant}'?" in str(unknown("name", wrong, known))


@pytest.mark.parametrize(
    ("wrong", "known"),
    [
        ("facilty", ["exact", "herding", "polished"]),
        ("facility", strategies()),
        ("device", Config.model_fields),
        ("device", EngineConfig.model_fields),
    ],
)
def test_what_is_far_is_not_suggested(wrong, known):
    error = str(unknown("name", wrong, known))
    assert "did you mean" not in error
    assert ", ".join(sorted(known)) in error
