"""What a forward pass leaves behind: the calls of layers, their edges in autograd's graph, and whose rows they hold.

*Edges.* A parameter is a leaf; every operation that uses it has one edge to it. If the layer rules account for all of
these edges, no use of the parameter was missed (tied weights used through a function, for example); if not, its
gradient is found another way.

*Row ownership.* The position in the batch does not always tell which sample a row belongs to: logits may be computed
at masked positions only, sequences may be time-major or packed. So the samples sign their rows: after the backward pass
of Σ_i ℓ_i, which gives b, that of Σ_i 2^i ℓ_i must give 2^i b on every row of sample i. Powers of two only change
exponents, so the two agree to the last bit; a row to which several samples contribute agrees with no power.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from coreplay.errors import InputError
from coreplay.gradients.problem import Selected, tensors_in
from coreplay.gradients.rules import Rule, find_rule

Node: TypeAlias = Any  # autograd's nodes have no public type
Edge: TypeAlias = tuple[Node, int]


def parameter_edges(
    roots: Iterable[torch.Tensor], names: dict[int, str], stop: Collection[torch.Tensor] = ()
) -> dict[str, set[Edge]]:
    """Return the edges into each named parameter, by name, walking back from `roots` as far as `stop`.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> loss = (weight * weight + weight.exp()).sum()
    >>> len(parameter_edges([loss], {id(weight): "weight"})["weight"])
    3
    """
    found: dict[str, set[Edge]] = {}
    seen: set[Node] = {tensor.grad_fn for tensor in stop if tensor.grad_fn is not None}
    open_nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
    while open_nodes:
        node = open_nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "CheckpointFunctionBackward":
            raise InputError(
                "the model uses reentrant checkpointing, which hides its layers from autograd: "
                "use torch.utils.checkpoint with use_reentrant=False"
            )
        for position, (following, _) in enumerate(node.next_functions):
            if following is None:
                continue
            name = names.get(id(getattr(following, "variable", None)))
            if name is not None:
                found.setdefault(name, set()).add((node, position))
            open_nodes.append(following)
    return found


@dataclass(frozen=True)
class RuleCall:
    """One call of a layer with a rule."""

    module: nn.Module
    rule: Rule
    parameters: dict[str, str]  # the layer's own name of each, such as "weight": the model's name
    inputs: Tensor
    version: int
    uses: set[Edge]
    edges: list[GradientEdge]

    @property
    def stale(self) -> bool:
        """Whether the inputs were changed in place after the layer used them."""
        return self.inputs._version != self.version


@dataclass(frozen=True)
class FunctionalCall:
    """One call of a module without a rule but with parameters of its own."""

    module: nn.Module
    parameters: dict[str, str]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[int]  # which of the tensors in the output have a gradient, in `tensors_in` order
    uses: set[Edge]
    edges: list[GradientEdge]


@dataclass
class Recorder:
    """Records the calls of one forward pass, and the graph edges to parameters that they account for."""

    selected: Selected
    n: int
    expand: bool
    nbytes: int = 0  # of the recorded outputs
    calls: list[RuleCall | FunctionalCall] = field(default_factory=list)
    claimed: dict[str, set[Edge]] = field(default_factory=dict)

    def hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Record one call; runs after the module's forward pass and before any other hook."""
        if not torch.is_grad_enabled():
            return None
        rule, inputs = find_rule(module), args[0] if args else kwargs.get("input")
        if rule is None or not isinstance(inputs, Tensor) or not isinstance(output, Tensor):
            return self._other(module, args, kwargs, output)
        return self._rule(module, rule, inputs, output) if output.requires_grad else None

    def _rule(self, module: nn.Module, rule: Rule, inputs: Tensor, output: Tensor) -> Tensor | None:
        own = _own_parameters(module, self.selected)
        parameters = {name: full for name, full in own.items() if name in rule.parameters}
        found = parameter_edges([output], self.selected.names, stop=[inputs])
        uses = {edge for name in parameters.values() for edge in self._claim(name, found.get(name, set()))}
        version = inputs._version
        # one row shared by all samples (position embeddings) becomes one row per sample, so that gradients stay apart
        shared = self.expand and self.n > 1 and inputs.dim() > 1 and inputs.shape[0] == 1 == output.shape[0]
        if shared:
            inputs, output = (inputs.expand(self.n, *inputs.shape[1:]), output.expand(self.n, *output.shape[1:]))
        output = _tap(output)
        self.nbytes += output.nbytes
        edges = [get_gradient_edge(output)]  # the edge, not the tensor: in-place operations may follow
        self.calls.append(RuleCall(module, rule, parameters, inputs.detach(), version, uses, edges))
        return output

    def _claim(self, name: str, found: set[Edge]) -> set[Edge]:
        """Account for one use of a parameter; any further use stays unclaimed and is noticed."""
        claimed = set(list(found)[:1])
        self.claimed.setdefault(name, set()).update(claimed)
        return claimed

    def _other(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        outputs = list(tensors_in(output))
        differentiable = [position for position, tensor in enumerate(outputs) if tensor.requires_grad]
        used = [outputs[position] for position in differentiable]
        found = parameter_edges(used, self.selected.names, stop=list(tensors_in((args, kwargs))))
        local = {id(parameter): name for name, parameter in module.named_parameters()}
        parameters, uses = {}, set()
        for name, edges in found.items():
            own = local.get(id(self.selected.parameters[name]))
            if own is not None and not edges <= self.claimed.get(name, set()):  # inner layers claimed the rest
                parameters[own] = name
                uses |= edges
                self.claimed.setdefault(name, set()).update(edges)
        if parameters:
            gradient_edges = [get_gradient_edge(tensor) for tensor in used]
            self.calls.append(FunctionalCall(module, parameters, args, kwargs, differentiable, uses, gradient_edges))


class _Tap(torch.autograd.Function):
    """The identity: an output may be a view, whose place in the graph in-place operations would move."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        return output.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


_tap: Callable[[Tensor], Tensor] = _Tap.apply


@contextmanager
def recording(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Record the calls of every layer that has selected parameters of its own."""
    layers = [module for module in model.modules() if _own_parameters(module, recorder.selected)]
    handles = [layer.register_forward_hook(recorder.hook, prepend=True, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _own_parameters(module: nn.Module, selected: Selected) -> dict[str, str]:
    return {
        name: selected.names[id(parameter)]
        for name, parameter in module._parameters.items()
        if id(parameter) in selected.names
    }


MOST_SAMPLES = 64  # exponents that are safe in float32
_BLOCK = 1 << 17  # numbers compared at a time: stays in the cache, and small beside the gradients themselves


def signatures(losses: Tensor) -> Tensor:
    """Return the codes 2^i that the samples sign with.

    >>> signatures(torch.zeros(4)).tolist()
    [1.0, 2.0, 4.0, 8.0]
    """
    return torch.pow(2.0, torch.arange(len(losses), device=losses.device)).to(losses.dtype)


def find_owners(plain: Tensor, signed: Tensor | None, n: int) -> Tensor | None:
    """Return the sample of each row, -1 for rows of zeros; None if any row belongs to no single sample.

    `plain` and `signed` are (rows, d): the two gradients. A row is accepted when what other samples might
    contribute to it is below rounding. Without `signed` the rows are taken to be in the order of the samples.

    >>> b = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]])
    >>> find_owners(b, b * torch.tensor([[1.0], [1.0], [4.0]]), 3).tolist()
    [0, -1, 2]
    >>> find_owners(b, 3 * b, 3) is None
    True
    >>> find_owners(b, None, 3).tolist()
    [0, -1, 2]
    """
    if signed is None:
        return _given(plain, n)
    if plain.device.type == "cpu" and len(plain) % n == 0:  # the usual case, recognised in one pass over the numbers
        codes = signatures(plain.new_empty(n)).numpy()
        owner = torch.empty(len(plain), dtype=torch.long)
        if _in_order(plain.contiguous().numpy(), signed.contiguous().numpy(), codes, owner.numpy()):
            return owner
    return _read(plain, signed, n)


def _given(plain: Tensor, n: int) -> Tensor:
    """Return the owners of rows that are promised to be in order; what is not finite will show in the norms."""
    if plain.device.type == "cpu":
        owner = torch.empty(len(plain), dtype=torch.long)
        _mark(plain.contiguous().numpy(), len(plain) // n, owner.numpy())
        return owner
    owner = torch.arange(n, device=plain.device).repeat_interleave(len(plain) // n)
    return torch.where((plain != 0).any(dim=1), owner, -1)


@njit(cache=True)
def _mark(plain: Any, each: int, owner: Any) -> None:
    """Set the owner of every row, -1 for rows of zeros; for most rows the first number decides."""
    for row in range(len(plain)):
        owner[row] = -1
        for column in range(plain.shape[1]):
            if plain[row, column] != 0:
                owner[row] = row // each
                break


@njit(cache=True)
def _in_order(plain: Any, signed: Any, codes: Any, owner: Any) -> bool:
    """Return whether every sample has equally many rows, in the order of the samples, that agree exactly."""
    each = len(plain) // len(codes)
    for row in range(len(plain)):
        code = codes[row // each]
        agree, largest = True, abs(signed[row, 0])
        for column in range(plain.shape[1]):
            value = signed[row, column]
            agree &= plain[row, column] * code == value
            largest = max(largest, abs(value))
        if not agree or not np.isfinite(largest):
            return False
        owner[row] = row // each if largest > 0 else -1
    return True


def _read(plain: Tensor, signed: Tensor, n: int) -> Tensor | None:
    """Return the owners of rows in any order, read from the signatures."""
    tolerance = 64 * torch.finfo(plain.dtype).eps
    owner = torch.empty(len(plain), dtype=torch.long, device=plain.device)
    for rows in _blocks(plain):
        here, there = plain[rows], signed[rows]
        low, high = here.abs().amax(1), there.abs().amax(1)
        if not bool(torch.isfinite(high).all()):
            return None
        present = low > 0
        exponent = torch.where(present, torch.log2(high / low).round(), 0.0)
        difference = (there - here * torch.pow(2.0, exponent).unsqueeze(1)).abs().amax(1)
        fits = (difference <= tolerance * high) & (exponent >= 0) & (exponent < n)
        if not bool((fits | ~present).all()):
            return None
        owner[rows] = torch.where(present, exponent.long(), -1)
    return owner


def _blocks(rows: Tensor) -> Iterator[slice]:
    step = max(1, _BLOCK // max(1, rows.shape[1]))
    return (slice(start, start + step) for start in range(0, len(rows), step))
