"""One forward pass and two backward passes over a chunk of samples: the factors of all parameters.

The second backward pass signs the rows (see `recorder`); it is left out where the caller promises their order. A
parameter goes through plain autograd, one sample at a time, whenever the layers do not account for it beyond doubt: it
is used outside the layers that own it, rows mix samples, or the fallback's sum differs from autograd's. So the result
is exact, never a guess.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from coreplay.gradients.factors import Chunk, Dense, Factor, Parts, as_matrix, merge
from coreplay.gradients.per_sample_fallback import functional_fallback, per_sample_autograd
from coreplay.gradients.problem import Problem
from coreplay.gradients.recorder import (
    FunctionalCall,
    Recorder,
    RuleCall,
    find_owners,
    parameter_edges,
    recording,
    signatures,
)
from coreplay.gradients.rules import LayerRows

Call: TypeAlias = RuleCall | FunctionalCall
Grads: TypeAlias = list[Tensor | None]


@dataclass(frozen=True)
class Forward:
    """What a forward pass shows: the losses, the calls that they depend on, and which parameters they reach.

    `unclaimed` parameters are used outside the calls; `nbytes` is the size of the calls' outputs.
    """

    losses: Tensor
    calls: list[Call]
    reached: set[str]
    unclaimed: set[str]
    nbytes: int


def forward(problem: Problem, start: int, stop: int, expand: bool) -> Forward:
    """Do the forward pass of the samples `start` up to `stop`, with the layers' calls recorded."""
    recorder = Recorder(problem.selected, stop - start, expand)
    with recording(problem.model, recorder):
        losses = problem.losses(start, stop)
    edges = parameter_edges([losses], problem.selected.names)
    unclaimed = {name for name, found in edges.items() if found - recorder.claimed.get(name, set())}
    reached = set().union(*edges.values())
    calls = [call for call in recorder.calls if call.uses & reached]
    return Forward(losses, calls, set(edges), unclaimed, recorder.nbytes)


def capture(problem: Problem, start: int, stop: int, expand: bool) -> Chunk:
    """Return the factors of the samples `start` up to `stop` (at most `MOST_SAMPLES`)."""
    seen = forward(problem, start, stop, expand)
    reached, unclaimed = seen.reached, seen.unclaimed
    parts, doubtful = _factors(problem, seen.losses, seen.calls)
    del seen  # frees the graph before the next passes
    for name, values in per_sample_autograd(problem, start, stop, unclaimed | (doubtful & reached)).items():
        parts[name] = Parts(as_matrix(problem.selected.parameters[name]), stop - start, dense=Dense(values))
    return Chunk(start, stop, parts, bool(reached))


def _factors(problem: Problem, losses: Tensor, calls: list[Call]) -> tuple[dict[str, Parts], set[str]]:
    """Return the factors that the calls give, and the parameters for which some call gives none."""
    parameters = problem.selected.parameters
    checked = sorted({name for call in calls if isinstance(call, FunctionalCall) for name in call.parameters.values()})
    plain, totals = _backward(losses, calls, [parameters[name] for name in checked], torch.ones_like(losses))
    signed: list[Grads] = [[None] * len(call.edges) for call in calls]
    promised = problem.batch_first and _first_is(len(losses), plain)
    if not promised:
        signed, _ = _backward(losses, calls, [], signatures(losses), last=True)
    factors: dict[str, list[Factor]] = {}
    doubtful: set[str] = set()
    gathered: dict[tuple[int, bytes], Tensor] = {}
    for call, here, there in zip(calls, plain, signed, strict=True):
        if isinstance(call, RuleCall):
            found = _apply_rule(call, here[0], there[0], len(losses), promised, gathered)
        else:
            found = functional_fallback(call, here, there, len(losses), promised)
        if found is None:
            doubtful.update(call.parameters.values())
            continue
        for name, factor in found.items():
            factors.setdefault(name, []).append(factor)
    parts = {
        name: merge(several, as_matrix(parameters[name]), len(losses))
        for name, several in factors.items()
        if name not in doubtful
    }
    for name, total in zip(checked, totals, strict=True):
        if name in parts and not _adds_up(parts[name], total):
            doubtful.add(name)
    return {name: part for name, part in parts.items() if name not in doubtful}, doubtful


def _first_is(n: int, grads: list[Grads]) -> bool:
    """Whether the first dimension of every output has the size of the batch."""
    return all(grad is None or (grad.dim() > 0 and len(grad) == n) for several in grads for grad in several)


def _backward(
    losses: Tensor, calls: list[Call], others: Iterable[Tensor], weights: Tensor, last: bool = False
) -> tuple[list[Grads], Grads]:
    """Return the gradients of Σ weights ∘ losses by the calls' outputs, and by other tensors."""
    wanted = [edge for call in calls for edge in call.edges] + [get_gradient_edge(other) for other in others]
    if not wanted:
        return [[] for _ in calls], []
    total = torch.dot(losses, weights)
    found: Grads = list(torch.autograd.grad(total, wanted, allow_unused=True, retain_graph=not last))
    grouped, place = [], 0
    for call in calls:
        grouped.append(found[place : place + len(call.edges)])
        place += len(call.edges)
    return grouped, found[place:]


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
        inputs = gathered[key] if key in gathered else inputs[order]
        gathered[key] = inputs
        grads, owner = grads[order], owner[order]
    rows = LayerRows(inputs, grads, owner, n)
    return {full: call.rule.function(call.module, name, rows) for name, full in call.parameters.items()}


def _split(shape: torch.Size, dims: int) -> tuple[torch.Size, torch.Size]:
    """Split a shape into what numbers the rows and the shape of one row (dims < 0: all but the first)."""
    place = 1 if dims < 0 else len(shape) - dims
    return shape[:place], shape[place:]


def _adds_up(part: Parts, total: Tensor | None) -> bool:
    """Whether the per-sample gradients of the fallback sum to what autograd says."""
    if part.dense is None:
        return False
    values = part.dense.values
    difference = values.sum(0) if total is None else values.sum(0) - total.detach().flatten()
    tolerance = 1e-4 if values.dtype == torch.float32 else 1e-10
    return bool(difference.norm() <= tolerance * values.norm(dim=1).sum())
