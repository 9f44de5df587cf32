"""Reading autograd's graph: the edges through which a loss reaches each parameter.

A parameter is a leaf; every operation that uses it has one edge to it. If the layer rules account for all of
these edges, no use of the parameter was missed (tied weights used through a function, for example); if not,
the gradient of that parameter is found another way.
"""

from collections.abc import Collection, Iterable
from typing import Any, TypeAlias

import torch

from coreplay.errors import InputError

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
