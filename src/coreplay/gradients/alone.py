"""One sample at a time: plain autograd, the definition that everything else must agree with."""

from collections.abc import Iterable

import torch
from torch import Tensor

from coreplay.gradients.problem import Problem


def gradients_alone(problem: Problem, start: int, stop: int, names: Iterable[str]) -> dict[str, Tensor]:
    """Return the named parameters' gradients, (samples, numel), by one backward pass a sample.

    Parameters that none of the losses depends on are left out.
    """
    parameters = {name: problem.selected.parameters[name] for name in names}
    result: dict[str, Tensor] = {}
    for i in range(start, stop) if parameters else ():
        losses = problem.losses(i, i + 1)
        if not losses.requires_grad:
            continue
        found = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, found, strict=True):
            if gradient is not None:
                dense = gradient.to_dense() if gradient.is_sparse else gradient
                if name not in result:
                    result[name] = dense.new_zeros(stop - start, dense.numel())
                result[name][i - start] = dense.detach().flatten()
    return result
