"""The largest outputs without the logits, against torch's of the logits."""

import pytest
import torch
from drawn import INPUTS, OUTPUTS, draw_features, draw_layer, refusal
from torch_sparse_ops import losses

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [0, 1, 5, 100, OUTPUTS])
def test_the_largest_outputs_are_those_of_torch(k: int, dtype: torch.dtype) -> None:
    layer, features = draw_layer(dtype), draw_features((2, 3), dtype)
    found, logits = losses.linear_topk(features, layer, k), layer(features)
    assert torch.equal(found.values, logits.topk(k).values)
    assert torch.equal(found.values, logits.gather(-1, found.indices))
    assert not found.values.requires_grad


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("k", [1, 7, 600, OUTPUTS])
@pytest.mark.parametrize("special", [0.0, torch.inf, -torch.inf, torch.nan])
def test_of_equal_outputs_the_lowest_indices_come_first(special: float, k: int) -> None:
    layer, features = draw_layer(), draw_features((9,)).detach().sign()
    with torch.no_grad():
        layer.weight.copy_(layer.weight.sign())
        layer.get_parameter("bias").zero_()[::3] = special
    found = losses.linear_topk(features, layer, k)
    values, indices = layer(features).sort(dim=1, descending=True, stable=True)
    assert torch.equal(found.indices, indices[:, :k])
    torch.testing.assert_close(found.values, values[:, :k], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_as_the_layer(dtype: torch.dtype) -> None:
    layer, features = draw_layer(), draw_features((11,))
    with torch.autocast("cpu", dtype=dtype):
        found = losses.linear_topk(features, layer, 5)
        assert found.values.dtype == dtype
        assert torch.equal(found.values, layer(features).topk(5).values)


def test_opcheck_topk() -> None:
    layer, features = draw_layer(), draw_features((3,)).detach()
    arguments = (features, layer.weight.detach(), layer.locations, None, 4, torch.float32)
    torch.library.opcheck(torch.ops.torch_sparse_ops.ffi_topk.default, arguments)


@pytest.mark.parametrize("k", [-1, OUTPUTS + 1])
def test_an_impossible_k_is_refused(k: int) -> None:
    with refusal(f"linear_topk: k: received {k}, accepted is 0 to 1003 (out_features)"):
        losses.linear_topk(torch.ones(3, INPUTS), draw_layer(), k)
