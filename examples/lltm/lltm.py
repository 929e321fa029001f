"""LLTM as a compiled extension: a recurrent cell without a forget gate, its candidate through an ELU.

>>> layer = LLTM(features=16, state=128)
>>> hidden, cell = layer(torch.randn(8, 16))
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

# isort: split
import _lltm  # after torch, which loads the libraries that it needs

__all__ = ["LLTM", "lltm", "reference"]


class LLTMFunction(torch.autograd.Function):
    """The compiled cell with its compiled derivative."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weights: Tensor, bias: Tensor, hidden: Tensor, cell: Tensor) -> Any:
        new_hidden, new_cell, gates, joined = _lltm.forward(input, weights, bias, hidden, cell)
        ctx.save_for_backward(new_cell, gates, joined, weights)
        return new_hidden, new_cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_new_hidden: Tensor, grad_new_cell: Tensor) -> Any:
        return tuple(_lltm.backward(grad_new_hidden, grad_new_cell, *ctx.saved_tensors))


def lltm(input: Tensor, weights: Tensor, bias: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next hidden and cell state.

    Args:
        input: ``[batch, features]``, float32 or float64.
        weights: ``[3 * state, state + features]``: rows of the input gate, the output gate and the candidate.
        bias: ``[3 * state]``.
        hidden: ``[batch, state]``.
        cell: ``[batch, state]``.

    Raises:
        RuntimeError: for another shape, dtype or device; the message names argument, received and accepted.
    """
    new_hidden, new_cell = LLTMFunction.apply(input, weights, bias, hidden, cell)
    return new_hidden, new_cell


def reference(
    input: Tensor, weights: Tensor, bias: Tensor, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what :func:`lltm` returns, in plain PyTorch: the definition of the cell."""
    gates = functional.linear(torch.cat([hidden, input], dim=1), weights, bias)
    input_gate, output_gate, candidate = gates.chunk(3, dim=1)
    new_cell = cell + torch.sigmoid(input_gate) * functional.elu(candidate)
    return torch.sigmoid(output_gate) * torch.tanh(new_cell), new_cell


class LLTM(nn.Module):
    """The cell as a layer.

    Args:
        features: size of each row of the input.
        state: size of the hidden and of the cell state.
    """

    def __init__(self, features: int, state: int) -> None:
        super().__init__()
        self.features, self.state = features, state
        self.weights = nn.Parameter(torch.empty(3 * state, state + features))
        self.bias = nn.Parameter(torch.empty(3 * state))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly from ``±1 / sqrt(state)``."""
        bound = 1 / math.sqrt(self.state)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, input: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return the state after ``input``; without ``state``, a sequence begins with zeros."""
        if state is None:
            zeros = input.new_zeros(input.size(0), self.state)
            state = (zeros, zeros)
        return lltm(input, self.weights, self.bias, *state)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"features={self.features}, state={self.state}"
