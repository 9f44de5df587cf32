"""Which sample each row of a layer's output gradient belongs to.

The position in the batch does not always tell: logits may be computed at masked positions only, sequences may be
time-major or packed. So the samples sign their rows: after the backward pass of Σ_i ℓ_i, which gives b, that of
Σ_i 2^i ℓ_i must give 2^i b on every row of sample i. Powers of two only change exponents, so the two agree to the last
bit; a row to which several samples contribute agrees with no power.
"""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

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

    `plain` and `signed` are (rows, d): the two gradients. A row is accepted when what other samples might contribute to
    it is below rounding. Without `signed` the rows are taken to be in the order of the samples, equally many of each.

    >>> b = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]])
    >>> find_owners(b, b * torch.tensor([[1.0], [1.0], [4.0]]), 3).tolist()
    [0, -1, 2]
    >>> find_owners(b, 3 * b, 3) is None
    True
    >>> find_owners(b, None, 3).tolist()
    [0, -1, 2]
    """
    on_cpu, in_order = plain.device.type == "cpu", len(plain) % n == 0
    owner = torch.empty(len(plain), dtype=torch.long, device=plain.device)
    if signed is None:
        if not in_order:
            return None
        if on_cpu:
            _mark(plain.contiguous().numpy(), len(plain) // n, owner.numpy())
            return owner
        position = torch.arange(n, device=plain.device).repeat_interleave(len(plain) // n)
        return torch.where((plain != 0).any(dim=1), position, -1)
    if on_cpu and in_order:  # the usual case, recognised in one pass over the numbers
        codes = signatures(plain.new_empty(n)).numpy()
        if _in_order(plain.contiguous().numpy(), signed.contiguous().numpy(), codes, owner.numpy()):
            return owner
    return owner if _read(plain, signed, n, owner) else None


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


def _read(plain: Tensor, signed: Tensor, n: int, owner: Tensor) -> bool:
    """Read the owners of rows in any order from the signatures; return whether every row has one."""
    tolerance = 64 * torch.finfo(plain.dtype).eps
    step = max(1, _BLOCK // max(1, plain.shape[1]))
    for start in range(0, len(plain), step):
        here, there = plain[start : start + step], signed[start : start + step]
        low, high = here.abs().amax(1), there.abs().amax(1)
        if not bool(torch.isfinite(high).all()):
            return False
        present = low > 0
        exponent = torch.where(present, torch.log2(high / low).round(), 0.0)
        difference = (there - here * torch.pow(2.0, exponent).unsqueeze(1)).abs().amax(1)
        fits = (difference <= tolerance * high) & (exponent >= 0) & (exponent < n)
        if not bool((fits | ~present).all()):
            return False
        owner[start : start + step] = torch.where(present, exponent.long(), -1)
    return True
