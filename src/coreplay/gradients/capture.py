"""The backward passes over a chunk of samples, and the factors of all parameters that follow from them.

The second backward pass signs the rows (see `ownership`); it is left out where the caller promises their order. A layer
with a rule gives its factors at once. A module without one (LSTM, GRU, attention, your own) is called again on one
sample at a time by torch.func: its vector-Jacobian product with the sample's output gradient is the sample's gradient.
A parameter goes through plain autograd, one sample at a time, whenever the calls do not account for it beyond doubt: it
is used outside the layers that own it, rows mix samples, or the gradients by torch.func do not add up to autograd's. So
the result is exact, never a guess.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call, vjp, vmap

from coreplay.gradients.factors import Chunk, Dense, Factor, Parts, as_matrix, merge
from coreplay.gradients.ownership import find_owners, signatures
from coreplay.gradients.problem import Problem, rebuild, tensors_in
from coreplay.gradients.recorder import Call, FunctionalCall, RuleCall, forward
from coreplay.gradients.rules import LayerRows

Grads: TypeAlias = list[Tensor | None]


def capture(problem: Problem, start: int, stop: int, expand: bool) -> Chunk:
    """Return the factors of the samples `start` up to `stop` (at most `MOST_SAMPLES`)."""
    seen = forward(problem, start, stop, expand)
    reached, unclaimed = seen.reached, seen.unclaimed
    parts, doubtful = _factors(problem, seen.losses, seen.calls)
    del seen  # frees the graph before the next passes
    for name, values in per_sample_autograd(problem, start, stop, unclaimed | (doubtful & reached)).items():
        parts[name] = Parts(as_matrix(problem.selected.parameters[name]), stop - start, dense=Dense(values))
    return Chunk(start, stop, parts, bool(reached))


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
                dense = gradient.detach().to_dense().flatten()
                if name not in result:
                    result[name] = dense.new_zeros(stop - start, len(dense))
                result[name][i - start] = dense
    return result


def _factors(problem: Problem, losses: Tensor, calls: list[Call]) -> tuple[dict[str, Parts], set[str]]:
    """Return the factors that the calls give, and the parameters for which some call gives none."""
    parameters, n = problem.selected.parameters, len(losses)
    checked = sorted({name for call in calls if isinstance(call, FunctionalCall) for name in call.parameters.values()})
    plain, totals = _backward(losses, calls, [parameters[name] for name in checked], torch.ones_like(losses))
    signed: list[Grads] = [[None] * len(call.edges) for call in calls]
    everything = [grad for grads in plain for grad in grads if grad is not None]
    promised = problem.batch_first and all(grad.dim() > 0 and len(grad) == n for grad in everything)
    if not promised:
        signed, _ = _backward(losses, calls, [], signatures(losses), last=True)
    factors: dict[str, list[Factor]] = {}
    doubtful: set[str] = set()
    gathered: dict[tuple[int, bytes], Tensor] = {}
    for call, here, there in zip(calls, plain, signed, strict=True):
        if isinstance(call, RuleCall):
            found = _apply_rule(call, here[0], there[0], n, promised, gathered)
        else:
            found = _apply_function(call, here, there, n, promised)
        if found is None:
            doubtful.update(call.parameters.values())
            continue
        for name, factor in found.items():
            factors.setdefault(name, []).append(factor)
    parts = {
        name: merge(several, as_matrix(parameters[name]), n)
        for name, several in factors.items()
        if name not in doubtful
    }
    for name, total in zip(checked, totals, strict=True):
        if name in parts and not _adds_up(parts[name], total):
            doubtful.add(name)
            del parts[name]
    return parts, doubtful


def _backward(
    losses: Tensor, calls: list[Call], others: Iterable[Tensor], weights: Tensor, last: bool = False
) -> tuple[list[Grads], Grads]:
    """Return the gradients of Σ weights ∘ losses by the calls' outputs, and by other tensors."""
    wanted = [edge for call in calls for edge in call.edges] + [get_gradient_edge(other) for other in others]
    if not wanted:
        return [[] for _ in calls], []
    total = torch.dot(losses, weights)
    found = iter(torch.autograd.grad(total, wanted, allow_unused=True, retain_graph=not last))
    return [[next(found) for _ in call.edges] for call in calls], list(found)


def _apply_rule(
    call: RuleCall,
    plain: Tensor | None,
    signed: Tensor | None,
    n: int,
    promised: bool,
    gathered: dict[tuple[int, bytes], Tensor],
) -> dict[str, Factor] | None:
    """Return the factors of one layer call, or None if its rows cannot be told apart."""
    if plain is None or (signed is None and not promised):  # how the loss depends on this call can't be seen here
        return None
    if plain.numel() == 0:
        return {}
    input_dims, output_dims = call.rule.row_dims(call.module)
    leading, row = _split(plain.shape, output_dims)
    input_leading, input_row = _split(call.inputs.shape, input_dims)
    if call.stale or leading != input_leading:
        return None
    plain = plain.reshape(leading.numel(), -1)
    owner = find_owners(plain, None if signed is None else signed.reshape(leading.numel(), -1), n)
    if owner is None:
        return None
    inputs, grads = call.inputs.reshape(leading.numel(), *input_row), plain.view(leading.numel(), *row)
    order = owner.argsort(stable=True)
    order = order[owner[order] >= 0]
    if len(order) == 0:
        return {}
    if not torch.equal(order, torch.arange(len(owner), device=order.device)):
        key = (call.inputs.data_ptr(), order.cpu().numpy().tobytes())  # query, key and value share their input
        if key not in gathered:
            gathered[key] = inputs[order]
        inputs, grads, owner = gathered[key], grads[order], owner[order]
    rows = LayerRows(inputs, grads, owner, n)
    return {full: call.rule.function(call.module, name, rows) for name, full in call.parameters.items()}


def _split(shape: torch.Size, dims: int) -> tuple[torch.Size, torch.Size]:
    """Split a shape into what numbers the rows and the shape of one row (dims < 0: all but the first)."""
    place = 1 if dims < 0 else len(shape) - dims
    return shape[:place], shape[place:]


def _apply_function(
    call: FunctionalCall, plain: Grads, signed: Grads, n: int, promised: bool
) -> dict[str, Factor] | None:
    """Return the gradients of the call's parameters by torch.func, or None if samples cannot be told apart.

    Which dimension of the inputs holds the samples is inferred, so the caller checks the sum of the result.
    """
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
    preferred = places[0][1]
    dims = [
        next((dim for dim in (preferred, 1 - preferred) if tensor.dim() > dim and tensor.shape[dim] == n), None)
        for tensor in tensors
    ]
    own = dict(call.module.named_parameters())
    parameters = {name: own[name].detach() for name in call.parameters}

    def one(parts: list[Tensor], grad: list[Tensor]) -> dict[str, Tensor]:
        def outputs(changed: dict[str, Tensor]) -> list[Tensor]:
            again = iter(part if d is None else part.unsqueeze(d) for part, d in zip(parts, dims, strict=True))
            args, kwargs = rebuild((call.args, call.kwargs), lambda leaf: next(again))
            found = list(tensors_in(functional_call(call.module, changed, args, kwargs)))
            return [found[position].squeeze(dim) for position, dim in places]

        pull = vjp(outputs, parameters)[1]
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
    """Return `one` of all samples: at once under `vmap` where the module allows that, else in a loop."""
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


def _adds_up(part: Parts, total: Tensor | None) -> bool:
    """Whether the gradients by torch.func sum to what autograd says."""
    if part.dense is None:
        return False
    values = part.dense.values
    difference = values.sum(0) if total is None else values.sum(0) - total.detach().flatten()
    tolerance = 1e-4 if values.dtype == torch.float32 else 1e-10
    return bool(difference.norm() <= tolerance * values.norm(dim=1).sum())
