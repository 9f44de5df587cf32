"""The forward pass: the losses, the calls of layers, and their edges in autograd's graph.

A parameter is a leaf of the graph; every operation that uses it has one edge to it. If the recorded calls account for
all of these edges, no use of the parameter was missed (tied weights used through a function, for example); if not, its
gradient is found another way.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from coreplay.errors import InputError
from coreplay.gradients.problem import Problem, Selected, tensors_in
from coreplay.gradients.rules import Rule, find_rule

Node: TypeAlias = Any  # autograd's nodes have no public type
Edge: TypeAlias = tuple[Node, int]


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


Call: TypeAlias = RuleCall | FunctionalCall


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
    recorder = _Recorder(problem.selected, stop - start, expand)
    layers = [module for module in problem.model.modules() if _own_parameters(module, problem.selected)]
    handles = [layer.register_forward_hook(recorder.hook, prepend=True, with_kwargs=True) for layer in layers]
    try:
        losses = problem.losses(start, stop)
    finally:
        for handle in handles:
            handle.remove()
    edges = parameter_edges([losses], problem.selected.names)
    unclaimed = {name for name, found in edges.items() if found - recorder.claimed.get(name, set())}
    reached = set().union(*edges.values())
    calls = [call for call in recorder.calls if call.uses & reached]
    return Forward(losses, calls, set(edges), unclaimed, recorder.nbytes)


@dataclass
class _Recorder:
    """Records the calls of one forward pass, and the graph edges to parameters that they account for."""

    selected: Selected
    n: int
    expand: bool
    nbytes: int = 0  # of the recorded outputs
    calls: list[Call] = field(default_factory=list)
    claimed: dict[str, set[Edge]] = field(default_factory=dict)

    def hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Record one call; runs after the module's forward pass and before any other hook."""
        if not torch.is_grad_enabled():
            return None
        rule, inputs = find_rule(module), args[0] if args else kwargs.get("input")
        if rule is None or not isinstance(inputs, Tensor) or not isinstance(output, Tensor):
            return self._other(module, args, kwargs, output)
        return self._rule(module, rule, inputs, output) if output.requires_grad else None

    def _rule(self, module: nn.Module, rule: Rule, inputs: Tensor, output: Tensor) -> Tensor:
        own = _own_parameters(module, self.selected)
        parameters = {name: full for name, full in own.items() if name in rule.parameters}
        found = parameter_edges([output], self.selected.names, stop=[inputs])
        uses: set[Edge] = set()
        for name in parameters.values():
            one_use = set(list(found.get(name, set()))[:1])  # any further use stays unclaimed and is noticed
            self.claimed.setdefault(name, set()).update(one_use)
            uses |= one_use
        version = inputs._version
        # one row shared by all samples (position embeddings) becomes one row per sample, so that gradients stay apart
        if self.expand and self.n > 1 and inputs.dim() > 1 and inputs.shape[0] == 1 == output.shape[0]:
            inputs, output = (inputs.expand(self.n, *inputs.shape[1:]), output.expand(self.n, *output.shape[1:]))
        output = _tap(output)
        self.nbytes += output.nbytes
        edges = [get_gradient_edge(output)]  # the edge, not the tensor: in-place operations may follow
        self.calls.append(RuleCall(module, rule, parameters, inputs.detach(), version, uses, edges))
        return output

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


def _own_parameters(module: nn.Module, selected: Selected) -> dict[str, str]:
    own = module._parameters.items()
    return {name: selected.names[id(parameter)] for name, parameter in own if id(parameter) in selected.names}


class _Tap(torch.autograd.Function):
    """The identity: an output may be a view, whose place in the graph in-place operations would move."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        return output.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


_tap: Callable[[Tensor], Tensor] = _Tap.apply


def parameter_edges(
    roots: Iterable[Tensor], names: dict[int, str], stop: Collection[Tensor] = ()
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
