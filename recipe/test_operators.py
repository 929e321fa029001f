"""Run by the recipe on the installed package: the dispatcher carries the operators, and they compute."""

import os

import torch
import torch_sparse_ops
from torch_sparse_ops import reference

FORWARD = (
    "torch_sparse_ops::ffi_forward(Tensor features, Tensor weights, Tensor locations, "
    "Tensor? bias=None) -> Tensor"
)
BACKWARD = (
    "torch_sparse_ops::ffi_backward(Tensor grad_output, Tensor features, Tensor weights, Tensor locations, "
    "bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
)


def check_schemas() -> None:
    """Both operators are known to the dispatcher under the published schemas."""
    assert str(torch.ops.torch_sparse_ops.ffi_forward.default._schema) == FORWARD
    assert str(torch.ops.torch_sparse_ops.ffi_backward.default._schema) == BACKWARD


def check_operators() -> None:
    """Results and gradients are those of the reference in plain PyTorch."""
    generator = torch.Generator().manual_seed(0)
    layer = torch_sparse_ops.nn.FixedFanInLinear(64, 1000, 8, generator=generator)
    features = torch.randn(5, 64, generator=generator, requires_grad=True)
    result = layer(features)
    expected = reference.ffi_forward(features, layer.weight, layer.locations, layer.bias)
    torch.testing.assert_close(result, expected)
    inputs = [features, *layer.parameters()]
    gradients = torch.autograd.grad(result.square().sum(), inputs)
    references = torch.autograd.grad(expected.square().sum(), inputs)
    torch.testing.assert_close(gradients, references)


def check_flavour() -> None:
    """A CUDA package comes with a torch of the same CUDA; a CPU package fits any torch."""
    wanted = os.environ.get("cuda_compiler_version", "None")  # noqa: SIM112 - a variant key
    found = torch.version.cuda
    assert wanted in ("None", found), f"built for CUDA {wanted}, torch has {found}"


if __name__ == "__main__":
    check_schemas()
    check_operators()
    check_flavour()
    print(f"torch_sparse_ops {torch_sparse_ops.__version__} works under torch {torch.__version__}")
