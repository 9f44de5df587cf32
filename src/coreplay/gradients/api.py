"""`gradient_matrix`: the entry point of this package."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from coreplay.errors import InputError, unknown
from coreplay.gradients.operator import DenseGradients, FactoredGradients, GradientMatrix, SketchedGradients
from coreplay.gradients.problem import PerSampleLoss, Problem, batch_size, select_parameters

_BACKENDS = ("factored", "dense", "sketch")


def gradient_matrix(
    model: nn.Module,
    per_sample_loss: PerSampleLoss,
    batch: Any,
    backend: str = "factored",
    *,
    parameters: str | Iterable[str] | None = None,
    batch_first: bool = False,
    probe_cache: dict[Any, Any] | None = None,
    memory_limit: int = 2 * 2**30,
    size: int = 4096,
    seed: int = 0,
) -> GradientMatrix:
    """Return the operator whose columns are the unit loss gradients of the samples of a batch.

    The gradients are taken in evaluation mode. Modes, buffers, `.grad` and random states stay as they were.

    Parameters
    ----------
    model
        Any torch module, in float32 or float64.
    per_sample_loss
        `per_sample_loss(model, batch)` returns one loss per sample, shape (n,). The loss of a sample may not
        depend on the other samples.
    batch
        Any nesting of mappings, lists and tuples of tensors with the n samples in dimension 0.
    backend
        "factored": exact, from layer inputs and output gradients, without building the gradients.
        "dense": exact, explicit gradients, for small models and as the reference.
        "sketch": `size` numbers per sample; inner products are right on average.
    parameters
        Shell-style name patterns such as `"classifier.*"`, one or several; by default all trainable
        parameters. Frozen parameters are left out.
    batch_first
        A promise that every layer has the samples in the first dimension of its input and output, in their order. It
        saves the second backward pass, which finds out which sample each row belongs to.
    probe_cache
        A dictionary that you keep, empty at first, for many pools of one model, loss and choice of parameters. It holds
        what two probed samples showed, by the shapes of a sample, so that the next pool of these shapes is not probed.
    memory_limit
        Bytes for what is kept and computed, besides the model; "factored" recomputes what does not fit.
    size
        Numbers per sample of a sketch.
    seed
        The seed of the sketch. Clients that share it can add their sketches up.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> def loss(model, batch):
    ...     x, y = batch
    ...     return nn.functional.cross_entropy(model(x), y, reduction="none")
    >>> G = gradient_matrix(model, loss, (torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])))
    >>> G.gram().shape, G.combine([1, 0, 1, 0, 0]).shape, G.project(G.combine([1, 0, 1, 0, 0])).shape
    ((5, 5), (67,), (5,))
    """
    if backend not in _BACKENDS:
        raise unknown("backend", backend, _BACKENDS)
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module: got {type(model).__name__}")
    if memory_limit < 1:
        raise InputError(f"memory_limit must be a number of bytes above 0: got {memory_limit}")
    for name, module in model.named_modules():
        if getattr(module, "max_norm", None) is not None:
            raise InputError(
                f"layer {name!r} has max_norm={module.max_norm}, so that a forward pass changes its weights: "
                "set it to None (the weights are within the norm after training)"
            )
    selected = select_parameters(model, parameters)
    probed = {} if probe_cache is None else probe_cache
    problem = Problem(model, per_sample_loss, batch, batch_size(batch), selected, batch_first, probed)
    if backend == "sketch":
        return SketchedGradients(problem, memory_limit, size, seed)
    return DenseGradients(problem, memory_limit) if backend == "dense" else FactoredGradients(problem, memory_limit)
