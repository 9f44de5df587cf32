"""A small run, and the command line called in this process."""

import sys

import pytest

from coreplay.cli import main

TINY = {  # images: each process would spend five seconds on loading transformers
    "stream": {"source": "digits", "options": {"num_clients": 5, "num_periods": 2}},
    "task": {"name": "image_classification", "options": {"channels": 2}},
    "federated": {"rounds": 3},
    "replay": {"strategy": "corrective", "budget": 3, "coordination_rounds": 1},
    "gradients": {"sketch_size": 64},
    "engine": {"workers": 1, "checkpoint_seconds": 0},
}


def call(capsys, *arguments):
    """Call the command line in this process; return the exit code, standard output and standard error."""
    before = sys.argv
    sys.argv = ["coreplay", *map(str, arguments)]
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        sys.argv = before
    shown = capsys.readouterr()
    return end.value.code or 0, shown.out, shown.err
