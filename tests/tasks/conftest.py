"""Settings for the tests of tasks."""

import torch

torch.set_num_threads(1)  # two test workers on two cores must not fight over threads
