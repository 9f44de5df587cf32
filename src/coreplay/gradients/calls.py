"""Recording: hooks that keep, for every call of a layer with selected parameters, what its rule needs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from coreplay.gradients.autograph import Edge, parameter_edges
from coreplay.gradients.rules import Rule, find_rule
from coreplay.gradients.selected import Selected
from coreplay.gradients.trees import tensors_in


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
class OtherCall:
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
    calls: list[RuleCall | OtherCall] = field(default_factory=list)
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
        # one row shared by all samples (position embeddings) becomes one row a sample: gradients stay apart
        shared = self.expand and self.n > 1 and inputs.dim() > 1 and inputs.shape[0] == 1 == output.shape[0]
        if shared:
            inputs, output = (
                inputs.expand(self.n, *inputs.shape[1:]),
                output.expand(self.n, *output.shape[1:]),
            )
        output = _tap(output)
        self.nbytes += output.nbytes
        edges = [get_gradient_edge(output)]  # the edge, not the tensor: in-place operations may follow
        self.calls.append(RuleCall(module, rule, parameters, inputs.detach(), version, uses, edges))
        return output

    def _claim(self, name: str, found: set[Edge]) -> set[Edge]:
        """Account for one use of a parameter; should there be more, they stay unclaimed and are noticed."""
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
            self.calls.append(OtherCall(module, parameters, args, kwargs, differentiable, uses, gradient_edges))


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
