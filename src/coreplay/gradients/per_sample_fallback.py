"""Gradients without a layer rule: torch.func for one module, or plain autograd for one sample after the other.

*Functional*: a module without a rule (LSTM, GRU, attention, your own) is called again on one sample at a time, and its
vector-Jacobian product with the sample's output gradient is the sample's gradient: all samples at once under `vmap`
where the module allows that, else in a loop. Which dimension holds the samples is inferred, so the caller checks the
sum of the result. *Autograd*: the definition that everything else must agree with.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap

from coreplay.gradients.factors import Dense, Factor
from coreplay.gradients.problem import Problem, rebuild, tensors_in
from coreplay.gradients.recorder import FunctionalCall, find_owners


def per_sample_autograd(problem: Problem, start: int, stop: int, names: Iterable[str]) -> dict[str, Tensor]:
    """Return the named parameters' gradients, (samples, numel), by one backward pass per sample.

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


def functional_fallback(
    call: FunctionalCall, plain: list[Tensor | None], signed: list[Tensor | None], n: int, promised: bool = False
) -> dict[str, Factor] | None:
    """Return the gradients of the call's parameters by name, or None if samples cannot be told apart."""
    places, grads = [], []
    for position, here, there in zip(call.outputs, plain, signed, strict=True):
        if here is not None and (promised or there is not None):
            dim = 0 if there is None else _sample_dim(here, there, n)
            if dim is None:
                return None
            places.append((position, dim))
            grads.append(here.movedim(dim, 0))
    if not places:
        return {}
    tensors = [tensor.detach() for tensor in tensors_in((call.args, call.kwargs))]
    dims = [_input_dim(tensor, n, places[0][1]) for tensor in tensors]
    own = dict(call.module.named_parameters())
    parameters = {name: own[name].detach() for name in call.parameters}

    def one(parts: list[Tensor], grad: list[Tensor]) -> dict[str, Tensor]:
        def forward(changed: dict[str, Tensor]) -> list[Tensor]:
            again = iter(part if d is None else part.unsqueeze(d) for part, d in zip(parts, dims, strict=True))
            args, kwargs = rebuild((call.args, call.kwargs), lambda leaf: next(again))
            outputs = list(tensors_in(functional_call(call.module, changed, args, kwargs)))
            return [outputs[position].squeeze(dim) for position, dim in places]

        pull = vjp(forward, parameters)[1]
        return dict(pull(grad)[0])

    try:
        found = _all_samples(one, tensors, dims, grads, n)
    except (RuntimeError, ValueError, TypeError, IndexError):  # the module does not work on one sample
        return None
    return {call.parameters[name]: Dense(gradient.detach().flatten(1)) for name, gradient in found.items()}


def _all_samples(
    one: Callable[[list[Tensor], list[Tensor]], dict[str, Tensor]],
    tensors: list[Tensor],
    dims: list[int | None],
    grads: list[Tensor],
    n: int,
) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # vmap warns where it is slow, not where it is wrong
            return dict(vmap(one, in_dims=(dims, 0))(tensors, grads))
    except RuntimeError:  # control flow on values, an operation without a batching rule
        pass
    single: list[dict[str, Tensor]] = []
    for i in range(n):
        parts = [tensor if d is None else tensor.select(d, i) for tensor, d in zip(tensors, dims, strict=True)]
        single.append(one(parts, [grad[i] for grad in grads]))
    return {name: torch.stack([result[name] for result in single]) for name in single[0]}


def _sample_dim(plain: Tensor, signed: Tensor, n: int) -> int | None:
    """Return the dimension (0, or 1 if time-major) along which slice i belongs to sample i."""
    for dim in range(min(2, plain.dim())):
        if plain.shape[dim] == n:
            rows = [grad.movedim(dim, 0).reshape(n, -1) for grad in (plain, signed)]
            owner = find_owners(rows[0], rows[1], n)
            if owner is not None and bool(((owner == torch.arange(n, device=owner.device)) | (owner < 0)).all()):
                return dim
    return None


def _input_dim(tensor: Any, n: int, preferred: int) -> int | None:
    for dim in (preferred, 1 - preferred):
        if tensor.dim() > dim and tensor.shape[dim] == n:
            return dim
    return None
