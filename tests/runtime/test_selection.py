"""A selector in a run: it sees the columns of the client's pool, and its weights go into the buffer."""

import numpy as np
import pytest

from coreplay import Config
from coreplay.replay import Store
from coreplay.replay.contents import samples_of
from coreplay.runtime.api import prepare, run
from coreplay.selection import Selection, selector, selectors
from coreplay.selection.api import _registry


def test_a_selector_sees_the_columns_and_its_weights_are_kept(tmp_path, monkeypatch):
    selectors()
    monkeypatch.setattr(_registry, "_entries", dict(_registry._entries))
    pools = []

    @selector("hardest_for_test")
    def hardest(pool, budget, rng):
        """Keep the samples with the largest losses."""
        names = ("label", "arrived", "timestamp", "weight", "losses", "features")
        pools.append({name: pool.column(name) for name in names})
        kept = np.argsort(-pool.column("losses"), kind="stable")[:budget]
        return Selection(kept, weights=np.full(budget, pool.size / budget))

    config = Config.make(
        {
            "stream": {"source": "digits", "options": {"num_clients": 2, "num_periods": 3}},
            "task": {"name": "image_classification", "options": {"channels": 2}},
            "federated": {"rounds": 1},
            "replay": {"strategy": "hardest_for_test", "budget": 4},
            "engine": {"name": "serial"},
        }
    )
    things = prepare(config)
    run(config, tmp_path / "run", prepared=things)
    sizes = things.stream.counts("train")
    assert len(pools) == 4  # two clients, and nothing is chosen after the last period
    for k, columns in enumerate(pools):
        period, client = divmod(k, 2)
        size = sizes[client, period] + 4 * period
        assert {len(column) for column in columns.values()} == {size}
        assert set(columns["arrived"]) <= set(range(period + 1))
        assert columns["features"].ndim == 2
        assert np.isfinite(columns["losses"]).all()
        assert set(columns["label"]) <= set(range(10))
    for client, columns in zip(things.stream.clients, pools[2:], strict=True):
        first = [columns["weight"][columns["arrived"] == period] for period in (0, 1)]
        assert first[0].tolist() == pytest.approx([len(pools[things.stream.clients.index(client)]["label"]) / 4] * 4)
        assert set(first[1]) == {1.0}
    with Store.open(tmp_path / "run/buffers.sqlite") as store:
        for client, columns in zip(things.stream.clients, pools[2:], strict=True):
            buffer = samples_of(store.load(client).items, things.stream.samples(client, 0))
            assert buffer.weight.tolist() == pytest.approx([len(columns["label"]) / 4] * 4)
            kept = np.sort(np.argsort(-columns["losses"], kind="stable")[:4])
            assert sorted(buffer.label.tolist()) == sorted(columns["label"][kept].tolist())
