"""PyTorch's own features, used on the layer as on any other module; docs/layer.md has the list."""

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torch_sparse_ops.nn import FixedFanInLinear

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INDEX_DTYPES = [torch.int16, torch.uint16, torch.int32, torch.int64]
Gradients = list[Tensor]


def draw_layer(dtype: torch.dtype = torch.float32, **options: Any) -> FixedFanInLinear:
    generator = torch.Generator().manual_seed(0)
    return FixedFanInLinear(12, 9, 4, dtype=dtype, generator=generator, **options)


def draw_features(batch: int = 6, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(batch, 12, generator=torch.Generator().manual_seed(batch)).to(dtype)


def differentiate(function: Callable[[Tensor], Tensor], features: Tensor, layer: nn.Module) -> Gradients:
    """Gradients of a loss with respect to the features and all parameters."""
    leaf = features.clone().requires_grad_()
    return list(torch.autograd.grad(function(leaf).square().sum(), [leaf, *layer.parameters()]))


# ---- compilation


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("compiler")
def test_training_compiles_once_for_every_batch_size(dtype: torch.dtype) -> None:
    layer = draw_layer(dtype)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    differentiate(compiled, draw_features(2, dtype), layer)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch in (3, 17, 64):
            features = draw_features(batch, dtype)
            actual = differentiate(compiled, features, layer)
            torch.testing.assert_close(actual, differentiate(layer, features, layer))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("compiler")
def test_an_exported_layer_is_saved_and_takes_any_batch(dtype: torch.dtype, tmp_path: Path) -> None:
    layer = draw_layer(dtype)
    shapes = {"features": {0: torch.export.Dim("batch")}}
    program = torch.export.export(layer, (draw_features(4, dtype),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "layer.pt2")
    loaded = torch.export.load(tmp_path / "layer.pt2").module()
    for batch in (2, 33):
        features = draw_features(batch, dtype)
        torch.testing.assert_close(loaded(features), layer(features))


class Widths(nn.Module):
    """Two layers, one for each width of floating point, since a package takes seconds to compile."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = draw_layer(torch.float32)
        self.narrow = draw_layer(torch.bfloat16)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.wide(features), self.narrow(torch.relu(features).bfloat16())


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_an_aotinductor_package_takes_any_batch(tmp_path: Path) -> None:
    model = Widths()
    shapes = {"features": {0: torch.export.Dim("batch", min=1, max=1024)}}
    program = torch.export.export(model, (draw_features(4),), dynamic_shapes=shapes)
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "layer.pt2"))
    loaded = torch._inductor.aoti_load_package(path)
    for batch in (1, 33):
        features = draw_features(batch)
        torch.testing.assert_close(tuple(loaded(features)), model(features))


@pytest.mark.usefixtures("compiler")
def test_symbolic_tracing_keeps_the_check_of_the_features() -> None:
    layer = draw_layer()
    traced = torch.fx.symbolic_trace(nn.Sequential(layer, nn.ReLU()))
    torch.testing.assert_close(traced(draw_features()), layer(draw_features()).relu())
    with pytest.raises(ValueError, match=r"received features of shape \[2, 13\], accepted is \[\.\.\., 12\]"):
        traced(torch.ones(2, 13))


def test_nothing_is_read_from_tensors_on_the_way() -> None:
    """A fake tensor has no data: reading it, which would break the capture of a CUDA graph, raises."""
    with FakeTensorMode():
        layer = draw_layer()
        features = torch.empty(6, 12, requires_grad=True)
        layer(features).square().sum().backward()
    assert features.grad is not None
    assert features.grad.shape == (6, 12)


# ---- training


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_gives_the_same_gradients(dtype: torch.dtype, use_reentrant: bool) -> None:
    layer = draw_layer(dtype)
    features = draw_features(6, dtype).requires_grad_()

    def function(features: Tensor) -> Tensor:
        result: Tensor = checkpoint(layer, features, use_reentrant=use_reentrant)
        return result

    # Reentrant checkpoints know only backward().
    function(features).square().sum().backward()
    actual = [tensor.grad for tensor in (features, *layer.parameters())]
    torch.testing.assert_close(actual, differentiate(layer, features.detach(), layer), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scaled_losses_under_autocast(dtype: torch.dtype) -> None:
    layer, narrow = draw_layer(), draw_layer().to(dtype)
    expected = differentiate(narrow, draw_features(6, dtype), narrow)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    before = layer.weight.detach().clone()
    with torch.autocast("cpu", dtype=dtype):
        loss = layer(draw_features()).square().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    torch.testing.assert_close(
        before - layer.weight.detach(), expected[1].float(), rtol=0.03, atol=0.03, check_dtype=False
    )


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters, **how: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **how),
    "Adam": lambda parameters, **how: torch.optim.Adam(parameters, lr=0.1, **how),
    "AdamW": lambda parameters, **how: torch.optim.AdamW(parameters, lr=0.1, **how),
    "Adagrad": lambda parameters, **how: torch.optim.Adagrad(parameters, lr=0.1, **how),
}


def train(layer: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> Gradients:
    for step in range(steps):
        optimizer.zero_grad()
        layer(draw_features(2 + step)).square().sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in layer.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_optimizers_of_every_kind_do_the_same(name: str, how: str) -> None:
    actual, expected = (
        train(layer, OPTIMIZERS[name](layer.parameters(), **options))
        for layer, options in ((draw_layer(), {how: True}), (draw_layer(), {"foreach": False}))
    )
    torch.testing.assert_close(actual, expected)
    assert not torch.equal(actual[0], draw_layer().weight)


# ---- parametrisations


def test_weight_norm_trains_direction_and_length() -> None:
    layer = draw_layer()
    expected = layer(draw_features())
    normed = nn.utils.parametrizations.weight_norm(layer)
    torch.testing.assert_close(normed(draw_features()), expected)
    normed(draw_features()).square().sum().backward()
    assert [name for name, p in normed.named_parameters() if p.grad is not None] == [
        "bias",
        "parametrizations.weight.original0",
        "parametrizations.weight.original1",
    ]


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def test_any_parametrisation_is_seen_by_forward() -> None:
    layer = draw_layer(bias=False)
    expected = 2 * layer(draw_features())
    nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())
    torch.testing.assert_close(layer(draw_features()), expected)
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    torch.testing.assert_close(layer(draw_features()), expected)


# ---- state


def same_layer(one: FixedFanInLinear, other: FixedFanInLinear) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_compute_the_same_and_are_independent(
    dtype: torch.dtype, copied: Callable[[FixedFanInLinear], FixedFanInLinear]
) -> None:
    layer = draw_layer(dtype, location_dtype=torch.int16)
    twin = copied(layer)
    assert same_layer(layer, twin)
    torch.testing.assert_close(twin(draw_features(3, dtype)), layer(draw_features(3, dtype)))
    twin.reset_parameters()
    assert not same_layer(layer, twin)


@pytest.mark.parametrize("dtype", DTYPES)
def test_state_is_loaded_as_weights_only(dtype: torch.dtype) -> None:
    layer, file = draw_layer(dtype), io.BytesIO()
    torch.save({"layer": layer.state_dict()}, file)
    file.seek(0)
    other = FixedFanInLinear(12, 9, 4, dtype=dtype)
    other.load_state_dict(torch.load(file, weights_only=True)["layer"])
    assert same_layer(layer, other)


@pytest.mark.parametrize("saved", INDEX_DTYPES)
@pytest.mark.parametrize("loading", INDEX_DTYPES)
def test_state_is_loaded_across_location_dtypes(saved: torch.dtype, loading: torch.dtype) -> None:
    layer, other = draw_layer(location_dtype=saved), FixedFanInLinear(12, 9, 4, location_dtype=loading)
    other.load_state_dict(layer.state_dict())
    assert other.locations.dtype == loading
    assert torch.equal(other.locations.long(), layer.locations.long())
    torch.testing.assert_close(other(draw_features()), layer(draw_features()), rtol=0, atol=0)


def test_state_is_assigned_to_a_layer_on_meta() -> None:
    layer, other = draw_layer(), draw_layer(device="meta")
    other.load_state_dict(layer.state_dict(), assign=True)
    torch.testing.assert_close(other(draw_features()), layer(draw_features()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("dtype", "in_features", "accepted"),
    [
        (torch.int16, 2**15 + 1, "torch.uint16, torch.int32, torch.int64"),
        (torch.uint16, 2**16 + 1, "torch.int32, torch.int64"),
        (torch.int32, 2**31 + 1, "torch.int64"),
        (torch.uint8, 100, "torch.int16, torch.uint16, torch.int32, torch.int64"),
    ],
)
def test_locations_that_do_not_count_the_inputs_are_refused(
    dtype: torch.dtype, in_features: int, accepted: str
) -> None:
    message = f"received location_dtype={dtype}; accepted for in_features={in_features} are {accepted}$"
    with pytest.raises(ValueError, match=message):
        FixedFanInLinear(in_features, 1, 1, location_dtype=dtype, device="meta")


@pytest.mark.parametrize(("dtype", "in_features"), [(torch.int16, 2**15), (torch.uint16, 2**16)])
def test_sixteen_bits_count_to_their_last_input(dtype: torch.dtype, in_features: int) -> None:
    layer = FixedFanInLinear(in_features, 3, in_features, bias=False, location_dtype=dtype)
    assert layer.locations.nbytes == 3 * in_features * 2
    layer.weight.data.fill_(1.0)
    features = torch.zeros(1, in_features)
    features[0, -1] = 1.0
    assert layer(features).tolist() == [[1.0, 1.0, 1.0]]


# ---- construction


def test_a_model_made_on_meta_draws_its_connections_later() -> None:
    with torch.device("meta"):
        first, last = nn.Linear(12, 12), draw_layer()
    model = nn.Sequential(first, last).to_empty(device="cpu")
    first.reset_parameters()
    last.reset_parameters()
    assert bool((last.locations[:, 1:] > last.locations[:, :-1]).all())
    assert model(draw_features()).shape == (6, 9)


def test_skip_init_leaves_the_drawing_to_the_caller() -> None:
    layer = nn.utils.skip_init(FixedFanInLinear, 12, 9, 4)
    assert isinstance(layer, FixedFanInLinear)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    assert same_layer(layer, draw_layer())


def test_locations_that_nobody_drew_are_refused() -> None:
    layer = nn.utils.skip_init(FixedFanInLinear, 12, 9, 4)
    layer.locations.fill_(99)  # as the memory may have it
    with pytest.raises(RuntimeError, match=r"locations\[0, 0\]: received 99, accepted is 0 to 11"):
        layer(draw_features())
