"""Layers, features and labels that the tests of losses and predictions share; the same ones every time."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_sparse_ops.nn import FixedFanInLinear

INPUTS, OUTPUTS, FAN_IN = 30, 1003, 6
IGNORED = -100


def draw_layer(
    dtype: torch.dtype = torch.float32, outputs: int = OUTPUTS, bias: bool = True
) -> FixedFanInLinear:
    generator = torch.Generator().manual_seed(1)
    return FixedFanInLinear(INPUTS, outputs, FAN_IN, bias, dtype=dtype, generator=generator)


def draw_features(leading: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    features = torch.randn(*leading, INPUTS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return features.to(dtype).requires_grad_()


def draw_target(leading: tuple[int, ...]) -> Tensor:
    target = torch.randint(OUTPUTS, leading, generator=torch.Generator().manual_seed(3))
    return target.masked_fill(target % 5 == 0, IGNORED)


def draw_labels(rows: int) -> Tensor:
    """Between none and 6 labels for each row, in any order."""
    generator = torch.Generator().manual_seed(4)
    labels = torch.rand(rows, OUTPUTS, generator=generator).topk(6).indices
    return labels.masked_fill(torch.rand(rows, 6, generator=generator) < 0.4, -1)


def make_dense(labels: Tensor, dtype: torch.dtype) -> Tensor:
    dense = torch.zeros(len(labels), OUTPUTS + 1, dtype=dtype)
    return dense.scatter_(1, labels.where(labels >= 0, OUTPUTS), 1)[:, :OUTPUTS]


def draw_factors(dtype: torch.dtype) -> Tensor:
    return torch.rand(OUTPUTS, generator=torch.Generator().manual_seed(5)).to(dtype) + 0.5


def refusal(text: str, error: type[Exception] = ValueError) -> Any:
    return pytest.raises(error, match=re.escape(text))
