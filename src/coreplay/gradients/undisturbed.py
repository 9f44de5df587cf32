"""A visit to a model that leaves no trace: modes, buffers and random states are put back."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode for a while; afterwards everything is as before, also after an error.

    The gradients are those of the loss in evaluation mode: dropout would make them random, batch
    statistics would couple the samples. `.grad` needs no care, since nothing here ever writes to it.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer._version, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - theirs, not ours
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices), torch.inference_mode(False), torch.enable_grad():
            model.eval()
            # cuDNN's recurrent layers refuse a backward pass in evaluation mode
            with torch.backends.cudnn.flags(enabled=False) if devices else torch.enable_grad():
                yield
    finally:
        for module, mode in modes:
            module.training = mode
        for module, name, buffer, version, copy in buffers:
            if buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(copy)
            module._buffers[name] = buffer
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
