"""Checks of values that users give."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import Field

from coreplay.data import Clients
from coreplay.errors import InputError
from coreplay.registry import Registry
from coreplay.validation import check_value, make_table


@pytest.mark.parametrize(
    ("value", "annotation", "found"),
    [
        (np.int64(3), int, 3),
        (np.float32(0.5), float, 0.5),
        (1, float, 1.0),
        (math.inf, float, math.inf),
        (None, int | None, None),
        ("stream.parquet", Path, Path("stream.parquet")),
        (["a", "b"], tuple[str, ...], ("a", "b")),
        (["a", "b"], Sequence[str], ["a", "b"]),
        ({"min_samples": 3}, Clients | Mapping[str, Any] | None, {"min_samples": 3}),
        (Clients(min_samples=2), Clients | Mapping[str, Any] | None, Clients(min_samples=2)),
    ],
)
def test_values_are_taken_as_a_file_writes_them(value, annotation, found):
    taken = check_value(value, annotation, "x")
    assert taken == found
    assert type(taken) is type(found)


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        ("3", int, "'3': must be a whole number"),
        (2.0, int, "2.0: must be a whole number"),
        (True, int, "True: must be a whole number"),
        (True, float, "True: must be a number"),
        (10**400, float, "must be a"),
        (math.nan, float, "nan: must be a number"),
        ([0.5, math.nan], list[float], "must be a number"),
        ((0.5, math.nan), tuple[float, ...], "must be a number"),
        ([object()], list[str], "not object"),
        (1, bool, "1: must be true or false"),
        (3, str | None, "3: must be a string"),
        ([1], tuple[str, ...], "must be a string at 0"),
        (0, Annotated[int, Field(ge=1)], "0: must be at least 1"),
        (1.5, Annotated[float, Field(gt=0, le=1)], "1.5: must be at most 1"),
        ("c", Literal["a", "b"], "'c': must be 'a' or 'b'"),
        ("x", int | float | None, "'x': must be a whole number or a number"),
    ],
)
def test_wrong_values_are_named_with_what_was_expected(value, annotation, expected):
    with pytest.raises(InputError) as caught:
        check_value(value, annotation, "option 'x'")
    assert str(caught.value).startswith("option 'x': got ")
    assert expected in str(caught.value)


def test_tables_are_made_of_known_keys_and_right_values():
    assert make_table(Clients, {"min_samples": 3}, "clients") == Clients(min_samples=3)
    assert make_table(Clients, None, "clients") == Clients()
    for given, words in (
        ("many", r"clients must be a table of options \(by, number.*: got 'many'"),
        ({"min_sample": 3}, "unknown option 'min_sample' of clients: did you mean 'min_samples'"),
        ({"min_samples": "3"}, "clients.min_samples: got '3': must be a whole number"),
    ):
        with pytest.raises(InputError, match=words):
            make_table(Clients, given, "clients")


def test_a_registry_names_the_owner_of_a_wrong_option():
    fruits: Registry[Any] = Registry("fruit")

    @fruits.register("apple")
    def apple(tree: str, *, weight: Annotated[float, Field(ge=0)] = 1.0, kind: str, odd: "Missing" = None) -> None:  # noqa: F821
        """Be an apple."""

    assert fruits.options("apple", {"kind": "red"}) == {"kind": "red"}
    assert fruits.options("apple", {}, complete=False) == {}
    with pytest.raises(InputError, match="fruit 'apple' needs the option 'kind'"):
        fruits.options("apple", {})
    with pytest.raises(InputError, match="unknown option 'weigth' of fruit 'apple': did you mean 'weight'"):
        fruits.options("apple", {"weigth": 2})


def test_bounds_of_a_function_are_honoured():
    fruits: Registry[Any] = Registry("fruit")

    @fruits.register("pear")
    def pear(*, weight: Annotated[float, Field(ge=0)] = 1.0) -> None:
        """Be a pear."""

    with pytest.raises(InputError, match="option 'weight' of fruit 'pear': got -1: must be at least 0"):
        fruits.options("pear", {"weight": -1})
