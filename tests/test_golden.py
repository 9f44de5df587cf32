"""Golden records: what five strategies and two algorithms gave before the code was rearranged.

`golden.json` holds rounded metrics, losses and objectives, and the keys of the samples kept. A change that moves them
says why. Joint choices are recorded on texts: gradients of digits under an untrained model nearly coincide, and the
choice among them depends on the processor's last digits. To write the records again:
`COREPLAY_GOLDEN=write pytest tests/test_golden.py`. Flower is compared in `tests/flower/test_engine.py`.
"""

import json
import os
from pathlib import Path

import pytest

import coreplay
from coreplay.replay import Store

GOLDEN = Path(__file__).with_name("golden.json")
DIGITS = {
    "stream": {"source": "digits", "options": {"num_clients": 4, "num_periods": 3}},
    "task": {"name": "image_classification", "options": {"channels": 2}},
    "federated": {"rounds": 2, "clients_per_round": 3},
    "replay": {"budget": 4, "coordination_rounds": 2},
    "gradients": {"sketch_size": 64},
    "engine": {"name": "serial"},
}
TEXTS = {
    "preset": "small",
    "stream": {"options": {"num_clients": 4, "num_periods": 2}},
    "task": {
        "options": {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "vocabulary_size": 200}
    },
    "federated": {"rounds": 2, "epochs": 2},
    "replay": {"budget": 3, "coordination_rounds": 2},
    "gradients": {"sketch_size": 1024},
    "engine": {"name": "serial"},
}
CASES = {
    "none": (DIGITS, {"replay.strategy": "none"}),
    "full_history": (DIGITS, {"replay.strategy": "full_history"}),
    "approximate_uniform": (DIGITS, {"replay.strategy": "approximate_uniform"}),
    "relaxation": (DIGITS, {"replay.strategy": "relaxation", "federated.algorithm": "fedprox"}),
    "herding": (DIGITS, {"replay.strategy": "herding", "federated.algorithm": "fedadam"}),
    "alternating": (TEXTS, {"replay.strategy": "alternating"}),
    "corrective": (TEXTS, {"replay.strategy": "corrective"}),
    "secure": (TEXTS, {"replay.strategy": "corrective", "replay.secure": True}),
}
EXACT = {"period", "test_period", "round", "clients", "samples", "answered", "kept", "distinct", "arrived"}


def record(folder, stores):
    """Return what a run left, as numbers that do not depend on the processor's last digits."""
    found = {}
    for name in ("metrics", "rounds", "coordination"):
        path = folder / f"{name}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        found[name] = [
            {k: v if k in EXACT or v is None else float(f"{v:.5g}") for k, v in row.items() if "bytes" not in k}
            for row in rows
        ]
    found["buffers"] = {}
    for path in stores:
        with Store.open(path) as store:
            for client, buffer in store.load_many(store.clients()).items():
                found["buffers"][client] = [[item.key, item.period] for item in buffer.items]
    return found


def check(name, found):
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("COREPLAY_GOLDEN") == "write":
        GOLDEN.write_text(json.dumps(golden | {name: found}, indent=1) + "\n")
        return
    expected = golden[name]
    assert found["buffers"] == expected["buffers"]
    for table in ("metrics", "rounds", "coordination"):
        assert len(found[table]) == len(expected[table])
        for row, wanted in zip(found[table], expected[table], strict=True):
            numbers = {key: value for key, value in wanted.items() if value is not None}
            assert row.keys() == wanted.keys()
            assert {key: row[key] for key in numbers} == pytest.approx(numbers, rel=1e-3, abs=1e-6)
            assert all(row[key] is None for key in wanted.keys() - numbers.keys())


@pytest.mark.parametrize("name", CASES)
def test_serial_runs_give_the_golden_records(name, tmp_path):
    given, changes = CASES[name]
    coreplay.run(coreplay.Config.make(given, changes), tmp_path / "run")
    check(name, record(tmp_path / "run", [tmp_path / "run" / "buffers.sqlite"]))


@pytest.mark.parametrize("name", ["relaxation", "corrective"])
def test_worker_processes_give_the_golden_records(name, tmp_path):
    given, changes = CASES[name]
    changes = changes | {"engine.name": "processes", "engine.workers": 2}
    coreplay.run(coreplay.Config.make(given, changes), tmp_path / "run")
    check(name, record(tmp_path / "run", [tmp_path / "run" / "buffers.sqlite"]))
