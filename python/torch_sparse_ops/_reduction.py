"""``ffi_reduce``: sums over all outputs of a fixed fan-in layer, and single outputs, without all logits.

    ffi_reduce(Tensor features, Tensor weights, Tensor locations, Tensor? bias,
               Tensor columns, Tensor? scales, str reduction, ScalarType dtype,
               SymInt first_output, SymInt all_outputs) -> (Tensor reduced, Tensor scaled, Tensor picked)

    reduced[b]   = log sum_o exp(x[b, o]) or sum_o log(1 + exp(x[b, o])), where x is what ffi_forward computes
    scaled[b]    = sum_o scales[o] * x[b, o]
    picked[b, l] = x[b, columns[b, l] - first_output], or 0 where this layer does not have that output

Losses are a few operations on these. Both directions compute the logits block by block: the forward pass
keeps its three results alone, and the backward pass computes each block again. The gradient of a logit needs
the whole sum, so even a forward pass that made the gradients would have to compute all logits twice; made in
the backward pass, they cost nothing in evaluation, know the gradient of the result, and are written once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from torch_sparse_ops._chunks import Chunk, Layer, cut_rows, iterate_chunks, sum_dtype
from torch_sparse_ops._registration import OUTPUT_MASK, TRANSFORMS

NO_COLUMN = torch.iinfo(torch.int64).min  # an entry of columns that picks nothing

_library = torch.library.Library("torch_sparse_ops", "FRAGMENT")
_TENSORS = "Tensor features, Tensor weights, Tensor locations, Tensor? bias, Tensor columns, Tensor? scales"
_OPTIONS = "str reduction, ScalarType dtype, SymInt first_output, SymInt all_outputs"
_FORWARD = f"ffi_reduce({_TENSORS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor)"
_BACKWARD = (
    "ffi_reduce_backward(Tensor reduced, Tensor grad_reduced, Tensor grad_scaled, Tensor grad_picked, "
    f"{_TENSORS}, {_OPTIONS}, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
)


# ---- reductions


class Reduction(NamedTuple):
    """A sum over outputs: that of a block (its logits are overwritten), of sums, and its derivative."""

    start: float
    of_block: Callable[[Tensor], Tensor]
    of_sums: Callable[[Tensor, Tensor], Tensor]
    derivative: Callable[[Tensor, Tensor], Tensor]


def finite(values: Tensor) -> Tensor:
    """Return the values with infinities replaced, so that a difference with an infinity is not NaN."""
    limits = torch.finfo(values.dtype)
    return values.clamp(limits.min, limits.max)


def _log_sum_exp(logits: Tensor) -> Tensor:
    largest = finite(logits.amax(1))
    return logits.sub_(largest[:, None]).exp_().sum(1).log_().add_(largest)


def _softmax(logits: Tensor, log_sum_exp: Tensor) -> Tensor:
    return logits.sub_(finite(log_sum_exp)[:, None]).exp_()


def _softplus(logits: Tensor) -> Tensor:
    return torch.logaddexp(logits, logits.new_zeros(()), out=logits).sum(1)


REDUCTIONS = {
    "log_sum_exp": Reduction(-torch.inf, _log_sum_exp, torch.logaddexp, _softmax),
    "softplus": Reduction(0.0, _softplus, torch.add, lambda logits, _: logits.sigmoid_()),
}


# ---- the operators


class Problem(NamedTuple):
    """The arguments of both operators, in their order."""

    features: Tensor
    weights: Tensor
    locations: Tensor
    bias: Tensor | None
    columns: Tensor
    scales: Tensor | None
    reduction: str
    dtype: torch.dtype
    first_output: int
    all_outputs: int

    def iterate_chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of the layer."""
        layer = Layer(self.weights, self.locations, self.bias, self.dtype)
        return iterate_chunks(layer, self.features)

    def find_columns(self, chunk: Chunk, rows: slice) -> tuple[Tensor, Tensor]:
        """Return which columns of some rows lie in a chunk, and where there: ``[rows, labels]`` each."""
        places = self.columns[rows] - (self.first_output + chunk.outputs.start)
        here = (places >= 0) & (places < chunk.weights.shape[0])
        return here, places.where(here, 0)

    def take_scales(self, chunk: Chunk) -> Tensor | None:
        """Return the scales of a chunk, in the dtype of sums."""
        return None if self.scales is None else self.scales[chunk.outputs].to(sum_dtype(self.dtype))


def _check_columns(columns: Tensor, all_outputs: int) -> None:
    """Check on the device: waiting for the answer of a GPU would hold up all that follows."""
    ordered = columns.sort(dim=1).values
    repeated = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_COLUMN)
    valid = (columns == NO_COLUMN) | ((columns >= 0) & (columns < all_outputs))
    accepted = f"0 to {all_outputs - 1} (out_features - 1)" if all_outputs else "none, of 0 outputs"
    if columns.device.type != "cpu":
        torch._assert_async(valid.all(), f"a target or label is out of range; accepted is {accepted}")
        torch._assert_async(~repeated.any(), "a row has the same label twice; accepted are distinct ones")
    elif not bool(valid.all()):
        row, place = (~valid).nonzero()[0].tolist()
        received = str(columns[row, place].item())
        raise RuntimeError(f"target or label of row {row}: received {received}, accepted is {accepted}")
    elif bool(repeated.any()):
        row, place = repeated.nonzero()[0].tolist()
        received = f"{ordered[row, place].item()} twice"
        raise RuntimeError(f"labels of row {row}: received {received}, accepted are distinct ones")


def _ffi_reduce(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    problem = Problem(*arguments)
    _check_columns(problem.columns, problem.all_outputs)
    features, dtype = problem.features.to(problem.dtype), sum_dtype(problem.dtype)
    batch, scaled_size = features.shape[0], 0 if problem.scales is None else features.shape[0]
    # Sums of blocks are added in double, so that their number does not matter.
    reduced = features.new_full((batch,), REDUCTIONS[problem.reduction].start, dtype=torch.float64)
    scaled = features.new_zeros(scaled_size, dtype=torch.float64)
    picked = features.new_zeros(problem.columns.shape, dtype=dtype)
    with torch.autocast(features.device.type, enabled=False):
        for chunk in problem.iterate_chunks():
            for rows in cut_rows(features):
                sums = (reduced[rows], scaled[rows], picked[rows])
                _reduce_block(problem, chunk, rows, features[rows], sums)
    return reduced.to(dtype), scaled.to(dtype), picked


def _reduce_block(
    problem: Problem, chunk: Chunk, rows: slice, features: Tensor, sums: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Add a block to the results of its rows, in place."""
    reduced, scaled, picked = sums
    reduction, scales = REDUCTIONS[problem.reduction], problem.take_scales(chunk)
    logits = chunk.compute_logits(features)
    here, places = problem.find_columns(chunk, rows)
    picked.copy_(logits.gather(1, places).where(here, picked))
    if scales is not None:
        scaled.add_(logits @ scales)
    reduced.copy_(reduction.of_sums(reduced, reduction.of_block(logits).double()))


class Gradients(NamedTuple):
    """What the backward pass gets for every row: the sums, and the gradients of the three results."""

    reduced: Tensor
    to_reduced: Tensor
    to_scaled: Tensor
    to_picked: Tensor


def _ffi_reduce_backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    *both, output_mask = arguments
    given, problem = Gradients(*both[:4]), Problem(*both[4:])
    features = problem.features.to(problem.dtype)
    grad_features, grad_weights, grad_bias = _ffi_reduce_backward_fake(*arguments)
    sums = torch.zeros_like(grad_features, dtype=sum_dtype(problem.dtype))
    with torch.autocast(features.device.type, enabled=False):
        for chunk in problem.iterate_chunks():
            to_weights, to_bias = _differentiate_chunk(problem, chunk, features, given, output_mask, sums)
            grad_weights[chunk.outputs] = to_weights
            grad_bias[chunk.outputs] = to_bias
    return sums.to(problem.features.dtype), grad_weights, grad_bias


def _differentiate_chunk(
    problem: Problem, chunk: Chunk, features: Tensor, given: Gradients, mask: OUTPUT_MASK, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the chunk's weights and bias, and add that of the features to ``sums``.

    What the mask leaves out has shape ``[0]`` throughout, of which every slice is empty.
    """
    of_layer: tuple[Tensor, ...] = ()
    for rows in cut_rows(features):
        to_logits = _differentiate_block(problem, chunk, rows, features[rows], given).to(problem.dtype)
        layer = (features[rows], chunk.weights, chunk.locations)
        to_features, *parts = torch.ops.torch_sparse_ops.ffi_backward(to_logits, *layer, mask)
        del to_logits  # before the next one is made
        sums[rows] += to_features
        parts = [part.to(sums.dtype) for part in parts]
        of_layer = tuple(map(torch.add, of_layer, parts)) if of_layer else tuple(parts)
    to_weights, to_bias = of_layer
    return to_weights, to_bias


def _differentiate_block(
    problem: Problem, chunk: Chunk, rows: slice, features: Tensor, given: Gradients
) -> Tensor:
    """Return the gradient of a block's logits, in their place."""
    logits, scales = chunk.compute_logits(features), problem.take_scales(chunk)
    here, places = problem.find_columns(chunk, rows)
    result = REDUCTIONS[problem.reduction].derivative(logits, given.reduced[rows])
    result.mul_(given.to_reduced[rows, None])
    if scales is not None:
        result.addr_(given.to_scaled[rows], scales)
    return result.scatter_add_(1, places, given.to_picked[rows].where(here, 0))


def observe_grad_output(
    problem: Problem,
    results: tuple[Tensor, Tensor, Tensor],
    observer: Callable[[slice, Tensor, Tensor], None],
) -> None:
    """Let a function see the outputs of each chunk, the features and the gradient of those outputs.

    It happens once in the backward pass, as soon as the gradients of the results are known.
    """
    detached: list[Any] = [t.detach() if isinstance(t, Tensor) else t for t in problem]
    problem, reduced = Problem(*detached), results[0].detach()

    @torch.no_grad()
    def observe(gradients: Sequence[Tensor | None]) -> None:
        known = (
            torch.zeros_like(result) if gradient is None else gradient
            for result, gradient in zip(results, gradients, strict=True)
        )
        given, features = Gradients(reduced, *known), problem.features.to(problem.dtype)
        for chunk in problem.iterate_chunks():
            blocks = [
                _differentiate_block(problem, chunk, rows, features[rows], given)
                for rows in cut_rows(features)
            ]
            observer(chunk.outputs, features, torch.cat(blocks))

    torch.autograd.graph.register_multi_grad_hook(results, observe)


# ---- shapes and derivatives


def _ffi_reduce_fake(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    problem = Problem(*arguments)
    batch, dtype = problem.features.shape[0], sum_dtype(problem.dtype)
    sizes = ((batch,), (0 if problem.scales is None else batch,), problem.columns.shape)
    reduced, scaled, picked = (problem.features.new_empty(size, dtype=dtype) for size in sizes)
    return reduced, scaled, picked


def _ffi_reduce_backward_fake(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    *both, output_mask = arguments
    problem = Problem(*both[4:])
    bias_like = problem.weights.new_empty(problem.weights.shape[:1]) if problem.bias is None else problem.bias
    to_features, to_weights, to_bias = (
        torch.empty_like(tensor, memory_format=torch.contiguous_format) if wanted else tensor.new_empty(0)
        for tensor, wanted in zip((problem.features, problem.weights, bias_like), output_mask, strict=True)
    )
    return to_features, to_weights, to_bias


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    problem = Problem(*inputs)
    ctx.save_for_backward(output[0], *problem[:6])
    ctx.options = problem[6:]


def _backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    reduced, *tensors = ctx.saved_tensors
    features, weights, _, bias, *_ = wanted = ctx.needs_input_grad
    operator = torch.ops.torch_sparse_ops.ffi_reduce_backward
    results = operator(reduced, *gradients, *tensors, *ctx.options, (features, weights, bias))
    to_features, to_weights, to_bias = (
        result if want else None for result, want in zip(results, (features, weights, bias), strict=True)
    )
    return to_features, to_weights, None, to_bias, *[None] * (len(wanted) - 4)


def _refuse_second_derivative(ctx: Any, *gradients: Tensor) -> NoReturn:
    raise RuntimeError(
        "the losses over ffi_reduce have first derivatives only; for second ones apply torch's loss to the "
        "logits, layer(features), which are differentiable any number of times"
    )


def _refuse_transforms(*arguments: Any) -> NoReturn:
    raise RuntimeError(
        "the losses over ffi_reduce take no part in torch.vmap and torch.func; inside of those apply torch's "
        "loss to layer(features), which does"
    )


def register() -> None:
    """Define both operators; the library must be loaded."""
    library = torch.library
    for schema, kernel, fake, backward, setup in (
        (_FORWARD, _ffi_reduce, _ffi_reduce_fake, _backward, _setup),
        (_BACKWARD, _ffi_reduce_backward, _ffi_reduce_backward_fake, _refuse_second_derivative, None),
    ):
        name = f"torch_sparse_ops::{schema.partition('(')[0]}"
        _library.define(schema)
        for key in ("CPU", "CUDA"):
            _library.impl(name, kernel, key)
        _library.impl(name, _refuse_transforms, TRANSFORMS)
        library.register_fake(name, fake)
        library.register_autograd(name, backward, setup_context=setup)
