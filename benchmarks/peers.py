"""The fixed fan-in layer as torch and scipy can compute it, ours among them: one class for each way."""

from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_sparse_ops import ops

DENSE_LIMIT = 4 << 30
GATHER_LIMIT = 4 << 30


class Shape(NamedTuple):
    """The sizes of a layer and its batch."""

    batch: int
    in_features: int
    out_features: int
    fan_in: int

    def count_flops(self, direction: str) -> float:
        """Floating-point operations: forward, or with the two products of the backward pass."""
        return (2.0 if direction == "forward" else 6.0) * self.batch * self.out_features * self.fan_in

    def count_bytes(self, dtype: str, direction: str, index_bytes: int) -> float:
        """Bytes that have to move at least: every input and every result once, in each pass."""
        value: int = getattr(torch, dtype).itemsize
        connections, results = self.out_features * self.fan_in, self.batch * self.out_features
        features = self.batch * self.in_features
        forward = value * (features + connections + self.out_features + results) + index_bytes * connections
        backward = value * (2 * features + 2 * connections + self.out_features + results)
        return forward if direction == "forward" else forward + backward + index_bytes * connections


SHAPES = [
    Shape(32, 512, 131072, 32),
    Shape(128, 768, 32768, 64),
    Shape(1, 768, 131072, 32),
    Shape(64, 3072, 768, 96),
    Shape(256, 1024, 10000, 16),
    Shape(32, 65536, 32768, 32),
]
PASSES = ("forward", "both")
# Relative to the largest value of the exact result.
TOLERANCES = {"float32": 1e-4, "float64": 1e-12, "float16": 1e-2, "bfloat16": 6e-2}


class Problem:
    """The tensors of a shape; the locations of an output are distinct and ascending, as CSR needs them."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: str = "cpu") -> None:
        options: dict[str, Any] = {"generator": torch.Generator(device).manual_seed(0), "device": device}
        batch, in_features, out_features, fan_in = self.shape = shape
        self.dtype = dtype
        self.device = device
        self.dtype_name = str(dtype).removeprefix("torch.")
        drawn = [
            torch.rand(min(8192, out_features - first), in_features, **options).topk(fan_in).indices
            for first in range(0, out_features, 8192)
        ]
        self.locations = torch.cat(drawn).sort(dim=1).values
        self.features = torch.randn(batch, in_features, **options).to(dtype)
        self.weights = (torch.randn(out_features, fan_in, **options) / fan_in**0.5).to(dtype)
        self.bias = torch.randn(out_features, **options).to(dtype)
        self.grad_output = torch.randn(batch, out_features, **options).to(dtype)


def solve(problem: Problem, direction: str) -> tuple[Tensor, ...]:
    """The result, or the three gradients, in float64."""
    features, weights = problem.features.double(), problem.weights.double()
    dense = torch.zeros(0)
    results, to_features, to_weights = [], torch.zeros_like(features), []
    grads = problem.grad_output.double()
    step = max(1, int(1e9 / (8 * problem.shape.in_features)))
    for first in range(0, problem.shape.out_features, step):
        rows = slice(first, first + step)
        locations = problem.locations[rows]
        dense = weights.new_zeros(len(locations), problem.shape.in_features)
        dense.scatter_(1, locations, weights[rows])
        if direction == "forward":
            results.append(features @ dense.T)
        else:
            to_features += grads[:, rows] @ dense
            to_weights.append((grads[:, rows].T @ features).gather(1, locations))
    if direction == "forward":
        return (torch.cat(results, dim=1) + problem.bias.double(),)
    return to_features, torch.cat(to_weights), grads.sum(dim=0)


def compute_error(actual: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> float:
    """Return the largest difference, relative to the largest exact value of its tensor."""
    pairs = zip(actual, exact, strict=True)
    return max(((a.double() - e).abs().max() / e.abs().max().clamp_min(1e-30)).item() for a, e in pairs)


class Peer:
    """One way to compute the layer. ``run`` is timed; what parameters alone decide is prepared before."""

    name: ClassVar[str]

    def __init__(self, problem: Problem, direction: str) -> None:
        self.problem = problem
        self.wants_gradients = direction == "both"
        self.arguments = [problem.features, problem.weights, problem.bias]
        self.prepare()
        if self.wants_gradients:
            self.arguments = [argument.detach().requires_grad_() for argument in self.arguments]

    def prepare(self) -> None:
        """Make indices; replace the weights by those of another format."""

    def forward(self, features: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        """Return the result, ``[batch, out_features]``."""
        raise NotImplementedError

    def select(self, outcome: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Bring the weights' gradient, if there is one, to ``[out_features, fan_in]``."""
        return outcome

    def run(self) -> tuple[Tensor, ...]:
        """Compute the result, or the gradients of features, weights and bias."""
        if self.wants_gradients:
            return torch.autograd.grad(
                self.forward(*self.arguments), self.arguments, self.problem.grad_output
            )
        with torch.no_grad():
            return (self.forward(*self.arguments),)


class Ours(Peer):
    """The operator, with 32-bit locations."""

    name = "ours, int32"
    index_dtype = torch.int32

    def prepare(self) -> None:
        if self.problem.shape.in_features > torch.iinfo(self.index_dtype).max:
            raise RuntimeError(f"{self.index_dtype} cannot hold the locations")
        self.locations = self.problem.locations.to(self.index_dtype)

    def forward(self, features: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        return ops.ffi_forward(features, weights, self.locations, bias)


class OursShort(Ours):
    """The operator, with 16-bit locations."""

    name = "ours, int16"
    index_dtype = torch.int16


class Dense(Peer):
    """A dense weight with zeros."""

    name = "dense F.linear"

    def prepare(self) -> None:
        shape = self.problem.shape
        if shape.out_features * shape.in_features * self.problem.dtype.itemsize > DENSE_LIMIT:
            raise MemoryError("the dense weight takes more than 4 GiB")
        weight = self.problem.weights.new_zeros(shape.out_features, shape.in_features)
        self.arguments[1] = weight.scatter_(1, self.problem.locations, self.problem.weights)

    def forward(self, features: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        result: Tensor = F.linear(features, weights, bias)
        return result

    def select(self, outcome: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not self.wants_gradients:
            return outcome
        return outcome[0], outcome[1].gather(1, self.problem.locations), outcome[2]


def turn(features: Tensor) -> Tensor:
    """Contiguous ``[in_features, batch]``; a batch of one, transposed, has an odd stride that slows peers."""
    return features.t().contiguous() if features.shape[0] > 1 else features.reshape(-1, 1)


class SparseProduct(Peer):
    """A CSR matrix times the transposed features."""

    name = "torch.sparse.mm, CSR"

    def prepare(self) -> None:
        shape = self.problem.shape
        starts = torch.arange(
            0,
            shape.out_features * shape.fan_in + 1,
            shape.fan_in,
            dtype=torch.int32,
            device=self.problem.device,
        )
        self.arguments[1] = torch.sparse_csr_tensor(
            starts,
            self.problem.locations.int().flatten(),
            self.problem.weights.flatten(),
            (shape.out_features, shape.in_features),
        )

    def forward(self, features: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        result: Tensor = torch.sparse.mm(weights, turn(features))
        return result.t().contiguous().add_(bias)

    def select(self, outcome: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not self.wants_gradients:
            return outcome
        weights = outcome[1]
        if weights.layout == torch.sparse_csr:
            return outcome[0], weights.values().reshape(self.problem.weights.shape), outcome[2]
        return outcome[0], weights.to_dense().gather(1, self.problem.locations), outcome[2]


class SparseLinear(SparseProduct):
    """``F.linear`` with a CSR weight."""

    name = "F.linear, CSR weight"

    def prepare(self) -> None:
        if self.wants_gradients and self.problem.shape.in_features * self.problem.shape.out_features > 2**30:
            raise MemoryError("its gradient is dense and takes more than 4 GiB")
        super().prepare()

    def forward(self, features: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        result: Tensor = F.linear(features, weights, bias)
        return result.contiguous()


class EmbeddingBag(Peer):
    """Inputs as an embedding table, outputs as bags with weights."""

    name = "F.embedding_bag"

    def prepare(self) -> None:
        self.locations = self.problem.locations.int()

    def forward(self, features: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        bags = F.embedding_bag(self.locations, turn(features), mode="sum", per_sample_weights=weights)
        return bags.t().contiguous().add_(bias)


class Gather(Peer):
    """Gathered features times weights, summed."""

    name = "gather, multiply, sum"

    def prepare(self) -> None:
        shape = self.problem.shape
        if shape.batch * shape.out_features * shape.fan_in * self.problem.dtype.itemsize > GATHER_LIMIT:
            raise MemoryError("the gathered features take more than 4 GiB")

    def forward(self, features: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        return torch.einsum("bok,ok->bo", features[:, self.problem.locations], weights) + bias


class CompiledGather(Gather):
    """The same through ``torch.compile``."""

    name = "torch.compile, gather"

    def prepare(self) -> None:
        def compute(features: Tensor, weights: Tensor, bias: Tensor, locations: Tensor) -> Tensor:
            return (features[:, locations] * weights).sum(-1) + bias

        torch._dynamo.reset()
        self.compiled = torch.compile(compute, dynamic=False)

    def forward(self, features: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        result: Tensor = self.compiled(features, weights, bias, self.problem.locations)
        return result


class Scipy(Peer):
    """scipy's CSR product, and its transpose for the gradient of the features."""

    name = "scipy.sparse, CSR"

    def prepare(self) -> None:
        import numpy as np
        import scipy.sparse  # type: ignore[import-untyped]

        problem, shape = self.problem, self.problem.shape
        if problem.dtype not in (torch.float32, torch.float64):
            raise RuntimeError(f"scipy has no {problem.dtype_name}")
        starts = np.arange(0, shape.out_features * shape.fan_in + 1, shape.fan_in, dtype=np.int32)
        columns = problem.locations.int().flatten().numpy()
        sizes = (shape.out_features, shape.in_features)
        self.matrix = scipy.sparse.csr_matrix(
            (problem.weights.flatten().numpy(), columns, starts), shape=sizes
        )
        self.transposed = self.matrix.T

    def run(self) -> tuple[Tensor, ...]:
        problem = self.problem
        turned = turn(problem.features).numpy()
        result = torch.from_numpy(self.matrix @ turned).t().contiguous().add_(problem.bias)
        if not self.wants_gradients:
            return (result,)
        grads = problem.grad_output
        to_features = torch.from_numpy(self.transposed @ turn(grads).numpy()).t().contiguous()
        return to_features, self._multiply_rows(torch.from_numpy(turned), turn(grads)), grads.sum(0)

    def _multiply_rows(self, features: Tensor, grads: Tensor) -> Tensor:
        blocks = zip(self.problem.locations.split(4096), grads.split(4096), strict=True)
        return torch.cat([torch.einsum("okb,ob->ok", features[rows], grad) for rows, grad in blocks])


PEERS: list[Any] = [
    Ours,
    OursShort,
    Dense,
    SparseProduct,
    SparseLinear,
    EmbeddingBag,
    Gather,
    CompiledGather,
    Scipy,
]
