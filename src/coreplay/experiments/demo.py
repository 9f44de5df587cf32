"""The demo: strategies of replay on a small synthetic stream whose users change what they ask for."""

from coreplay.experiments.sweep import Sweep

# Strong drift, so that a model without replay forgets. Sizes and rates were tried on a stream with seed 101; but a
# first rate of 0.02 was given up because with it, on the stream and seed 0 that are shown, full_history diverged.
DEMO = Sweep.make(
    {
        "strategies": ["none", "naive_uniform", "polished", "alternating", "corrective", "full_history"],
        "budgets": [10],
        "seeds": [0, 1],
        "run": {
            "stream": {
                "source": "synthetic",
                "options": {"num_clients": 16, "num_periods": 4, "samples": 40, "drift": 3.0, "seasonality": 1.0},
            },
            "task": {
                "name": "masked_lm",
                "options": {
                    "num_layers": 1,
                    "hidden_size": 48,
                    "num_heads": 4,
                    "intermediate_size": 96,
                    "vocabulary_size": 500,
                    "max_length": 20,
                },
            },
            "federated": {
                "rounds": 20,
                "clients_per_round": 8,
                "batch_size": 32,
                "optimizer": "adamw",
                "learning_rate": 0.01,
            },
            "gradients": {"sketch_size": 512},
        },
    }
)
