"""Configurations to start from, by name: `preset = "small"`."""

from typing import Any

_SMALL_BERT = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 128}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "stream": {"source": "synthetic", "options": {"num_clients": 1000, "num_periods": 10}},
        "task": {"name": "masked_lm", "options": {"vocabulary_size": 8192, "max_length": 32}},
        "federated": {"rounds": 10, "clients_per_round": 100, "learning_rate": 0.5},
        "replay": {"strategy": "corrective", "budget": 20},
    },
    "small": {
        "stream": {"source": "synthetic", "options": {"num_clients": 30, "num_periods": 5}},
        "task": {"name": "masked_lm", "options": _SMALL_BERT | {"vocabulary_size": 1024, "max_length": 24}},
        "federated": {"rounds": 8, "optimizer": "adamw", "learning_rate": 0.003},
        "replay": {"strategy": "corrective", "budget": 5},
        "gradients": {"sketch_size": 1024},
    },
}
