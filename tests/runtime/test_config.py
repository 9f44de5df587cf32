"""Configurations: written, read, changed, refused."""

import tomllib
from datetime import date

import numpy as np
import pytest

from coreplay.errors import InputError
from coreplay.runtime import PRESETS, Config
from coreplay.runtime.config import StreamConfig
from coreplay.selection import selector


@pytest.mark.parametrize("name", [None, *PRESETS])
def test_written_configurations_read_back_equal(name, tmp_path):
    config = Config.make({} if name is None else {"preset": name}, {"replay.client_budgets": {'an "odd" ☃ id': 3}})
    (tmp_path / "run.toml").write_text(config.toml(), encoding="utf-8")
    assert Config.load(tmp_path / "run.toml") == config


def test_infinity_is_written_as_toml_has_it(tmp_path):
    config = Config.make({"stream": {"options": {"alpha": float("inf")}}})
    (tmp_path / "run.toml").write_text(config.toml())
    assert Config.load(tmp_path / "run.toml") == config


def test_every_field_is_explained():
    def fields(part):
        for name, field in type(part).model_fields.items():
            yield name, field.description
            if hasattr(type(getattr(part, name)), "model_fields"):
                yield from fields(getattr(part, name))

    assert all(text and text.endswith(".") for _, text in fields(Config()))
    written = {line.strip("# []").split(" =")[0] for line in Config().toml().splitlines()}
    assert {name for name, _ in fields(Config())} <= written


def test_changes_by_dotted_name_change_a_preset():
    config = Config.make({"preset": "small", "seed": 3}, {"replay.budget": 7, "stream.options.num_clients": 4})
    assert (config.seed, config.replay.budget, config.stream.options["num_clients"]) == (3, 7, 4)
    assert config.stream.options["num_periods"] == PRESETS["small"]["stream"]["options"]["num_periods"]
    assert PRESETS["small"]["stream"]["options"]["num_clients"] != 4, "a preset must not change"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[replay]\nbudgt = 3", r"unknown key 'budgt' in \[replay\]: did you mean 'budget'"),
        ("sed = 3", "unknown key 'sed': did you mean 'seed'"),
        ("[replay]\nbudget = 0", "replay.budget = 0: must be at least 1"),
        ("[replay]\nbudget = 'many'", "replay.budget = 'many'"),
        ("[replay]\nmax_budget = 3", "replay.max_budget = 3 limits what replay.budget_fraction gives"),
        ("[federated]\nlearning_rate = -1", "federated.learning_rate = -1"),
        ("[federated]\nlearning_rate = inf", "federated.learning_rate = inf: .*finite"),
        (
            "[replay]\nstrategy = 'polished'\noptions = { moves = 'many' }",
            "option 'moves' of method 'polished': got 'many': must be a whole number",
        ),
        ("[federated]\noptimizer = 'adam'", "'sgd' or 'adamw'"),
        ("[federated]\nalgorithm = 'fedavgg'", "did you mean 'fedavgm'|did you mean 'fedavg'"),
        ("[replay]\nstrategy = 'corective'", "did you mean 'corrective'"),
        (
            "[replay]\nstrategy = 'fixed_proportion'\noptions = { proportion = 7.0 }",
            "option 'proportion' of .* got 7.0: must be below 1",
        ),
        ("[replay]\nstrategy = 'balanced'\noptions = { turns = 0 }", "option 'turns' of .* got 0: must be at least 1"),
        ("[replay]\nstrategy = 'none'\noptions = { x = 1 }", "unknown option 'x' of strategy 'none'"),
        ("[replay]\nstrategy = 'exact'\noptions = { timelimit = 1 }", "did you mean 'time_limit'"),
        ("[replay.client_budgets]\nann = 0", "replay.client_budgets.ann = 0: must be at least 1"),
        ("[stream]\nsource = 'syntetic'", "did you mean 'synthetic'"),
        ("[stream]\noptions = { num_client = 3 }", "did you mean 'num_clients'"),
        ("[stream]\nsource = 'files'", "source 'files' needs the option 'path'"),
        ("[task]\nname = 'masked'", "unknown task 'masked'"),
        ("[task]\noptions = { num_layer = 3 }", "did you mean 'num_layers'"),
        ("[engine]\nname = 'proceses'", "did you mean 'processes'"),
        ("preset = 'smal'", "did you mean 'small'"),
        ("seed = [", "can't be read as TOML"),
    ],
)
def test_wrong_configurations_are_explained(text, words, tmp_path):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(InputError, match=words):
        Config.load(tmp_path / "run.toml")


def test_dates_and_missing_options_survive_a_file(tmp_path):
    options = {"path": "x.jsonl", "periods": {"start": date(2023, 11, 15)}, "labels": None}
    config = Config.make({"stream": {"source": "files", "options": options}, "federated": {"max_grad_norm": 0}})
    (tmp_path / "run.toml").write_text(config.toml())
    found = Config.load(tmp_path / "run.toml")
    assert found.stream.options == {"path": "x.jsonl", "periods": {"start": date(2023, 11, 15)}}
    assert found.federated.max_grad_norm == 0
    with pytest.raises(InputError, match="a list in the configuration holds None"):
        Config(stream=StreamConfig(source="files", options={"path": ["a.jsonl", None]})).toml()


def test_what_else_fails_in_a_selector_of_ones_own_is_not_the_configurations_fault():
    @selector("first_of_many_for_test")
    def own(pool, budget, rng, *, least=100):
        """Choose the first of at least so many."""
        if pool.size < least:
            raise ValueError("too few samples")
        return np.arange(budget)

    config = Config.make({"replay": {"strategy": "first_of_many_for_test", "options": {"least": 1000}}})
    assert config.replay.options == {"least": 1000}


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.toml"):
        Config.load(tmp_path / "nowhere.toml")


def test_what_is_printed_is_toml():
    assert tomllib.loads(Config().toml())["replay"]["budget"] == 20
