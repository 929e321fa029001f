"""FixedFanInLinear: connections, initialisation, conversion, state, devices."""

import copy
import io
import math
from itertools import combinations

import pytest
import torch
from torch import Tensor
from torch_sparse_ops import reference
from torch_sparse_ops.nn import FixedFanInLinear, draw_locations


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def same_state(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


# ---- connections


@pytest.mark.parametrize("fan_in", [0, 1, 2, 7, 20, 39, 40])
def test_connections_are_distinct_sorted_and_in_range(fan_in: int) -> None:
    locations = draw_locations(40, 500, fan_in, generator=seeded())
    assert locations.shape == (500, fan_in)
    assert locations.dtype == torch.int32
    assert bool((locations[:, 1:] > locations[:, :-1]).all())
    assert bool(((locations >= 0) & (locations < 40)).all())


@pytest.mark.parametrize("fan_in", [7, 39])
def test_connections_of_all_parts_are_drawn(fan_in: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_sparse_ops.nn.DRAWN_AT_A_TIME", 3 * fan_in)
    locations = draw_locations(40, 100, fan_in, generator=seeded())  # the last part has one row
    assert bool((locations[:, 1:] > locations[:, :-1]).all())
    assert bool(((locations >= 0) & (locations < 40)).all())
    assert not torch.equal(locations[:3], locations[3:6])


@pytest.mark.parametrize("fan_in", [1, 2, 3, 4])
def test_all_subsets_are_equally_likely(fan_in: int) -> None:
    draws = 20_000
    locations = draw_locations(5, draws, fan_in, generator=seeded())
    subsets = list(combinations(range(5), fan_in))
    codes = [sum(5**k * i for k, i in enumerate(subset)) for subset in subsets]
    drawn = (locations.long() * 5 ** torch.arange(fan_in)).sum(dim=1)
    counts = torch.tensor([int((drawn == code).sum()) for code in codes])
    assert counts.sum() == draws
    expected = draws / len(subsets)
    # Pearson's statistic has mean m and variance 2m for m degrees of freedom: five deviations.
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    freedom = len(subsets) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


def test_a_million_outputs_are_drawn_without_a_dense_matrix() -> None:
    locations = draw_locations(2**20, 1_000_000, 2, generator=seeded())  # dense: 10^12 entries
    assert bool((locations[:, 1] > locations[:, 0]).all())


def test_a_generator_repeats_connections_and_weights() -> None:
    layers = [FixedFanInLinear(30, 20, 5, generator=seeded(seed)) for seed in (3, 3, 4)]
    assert same_state(layers[0], layers[1])
    assert not torch.equal(layers[0].locations, layers[2].locations)
    assert not torch.equal(layers[0].weight, layers[2].weight)


def test_the_global_seed_repeats_a_layer() -> None:
    torch.manual_seed(5)
    first = FixedFanInLinear(30, 20, 5)
    torch.manual_seed(5)
    assert same_state(first, FixedFanInLinear(30, 20, 5))


@pytest.mark.parametrize(
    ("in_features", "out_features", "fan_in"), [(4, 3, 5), (4, -1, 2), (4, 3, -1), (-1, 3, 0)]
)
def test_impossible_sizes_are_refused(in_features: int, out_features: int, fan_in: int) -> None:
    message = (
        f"received in_features={in_features}, out_features={out_features}, fan_in={fan_in}; accepted are"
    )
    with pytest.raises(ValueError, match=message):
        FixedFanInLinear(in_features, out_features, fan_in)
    with pytest.raises(ValueError, match=message):
        draw_locations(in_features, out_features, fan_in)


# ---- initialisation


def test_parameters_spread_like_those_of_a_dense_layer_with_as_many_inputs() -> None:
    layer = FixedFanInLinear(1000, 4000, 16, generator=seeded())
    assert layer.bias is not None
    for parameter in (layer.weight, layer.bias):
        assert parameter.abs().max().item() <= 0.25
        assert parameter.abs().max().item() > 0.249
        assert parameter.std().item() == pytest.approx(0.25 / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("sizes", [(4, 3, 0), (4, 0, 2), (0, 3, 0)])
def test_empty_layers_work(sizes: tuple[int, int, int]) -> None:
    layer = FixedFanInLinear(*sizes)
    result = layer(torch.ones(2, sizes[0]))
    assert result.shape == (2, sizes[1])
    assert bool((result == 0).all())  # nothing is connected, and a bias without inputs starts at 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_forward_is_the_operator(dtype: torch.dtype, bias: bool) -> None:
    layer = FixedFanInLinear(30, 20, 5, bias=bias, dtype=dtype)
    features = torch.randn(2, 3, 30).to(dtype)
    expected = reference.ffi_forward(features, layer.weight, layer.locations, layer.bias)
    torch.testing.assert_close(layer(features), expected)
    assert layer(features).shape == (2, 3, 20)


def test_forward_refuses_another_number_of_inputs() -> None:
    with pytest.raises(ValueError, match=r"received features of shape \[2, 31\], accepted is \[\.\.\., 30\]"):
        FixedFanInLinear(30, 20, 5)(torch.ones(2, 31))


def test_the_layer_learns() -> None:
    torch.manual_seed(0)
    layer = FixedFanInLinear(20, 6, 4)
    features = torch.randn(256, 20)
    target = FixedFanInLinear(20, 6, 4)
    target.load_state_dict({**target.state_dict(), "locations": layer.locations})
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(layer(features), target(features).detach())
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-4


def test_repr_names_the_sizes() -> None:
    text = repr(FixedFanInLinear(30, 20, 5, bias=False))
    assert text == "FixedFanInLinear(in_features=30, out_features=20, fan_in=5, bias=False)"


# ---- conversion


@pytest.mark.parametrize("bias", [True, False])
def test_to_dense_computes_the_same(bias: bool) -> None:
    layer = FixedFanInLinear(30, 20, 5, bias=bias)
    features = torch.randn(7, 30)
    torch.testing.assert_close(layer.to_dense()(features), layer(features))


def test_to_dense_adds_repeated_connections() -> None:
    layer = FixedFanInLinear(30, 20, 5)
    layer.locations.fill_(4)
    torch.testing.assert_close(layer.to_dense().weight[:, 4], layer.weight.sum(dim=1))


def test_from_dense_keeps_the_largest_weights() -> None:
    weight = torch.tensor([[1.0, -4.0, 0.5, 3.0], [0.0, 0.1, -0.2, 0.05]])
    layer = FixedFanInLinear.from_dense(weight, 2)
    assert layer.locations.tolist() == [[1, 3], [1, 2]]
    assert layer.bias is None
    torch.testing.assert_close(layer.weight.data, torch.tensor([[-4.0, 3.0], [0.1, -0.2]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_survives_the_way_to_dense_and_back(dtype: torch.dtype) -> None:
    layer = FixedFanInLinear(30, 20, 5, dtype=dtype)
    assert same_state(FixedFanInLinear.from_dense(layer.to_dense(), 5), layer)


def test_from_dense_with_every_input_is_the_dense_layer() -> None:
    dense = torch.nn.Linear(9, 7)
    features = torch.randn(4, 9)
    torch.testing.assert_close(FixedFanInLinear.from_dense(dense, 9)(features), dense(features))


def test_from_dense_leaves_parameters_that_learn() -> None:
    layer = FixedFanInLinear.from_dense(torch.nn.Linear(9, 7), 3)
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in layer.parameters())


def test_from_dense_refuses_more_inputs_than_there_are() -> None:
    with pytest.raises(ValueError, match="received in_features=9, out_features=7, fan_in=10"):
        FixedFanInLinear.from_dense(torch.nn.Linear(9, 7), 10)


# ---- state and devices


def test_state_survives_a_file() -> None:
    layer, other = FixedFanInLinear(30, 20, 5), FixedFanInLinear(30, 20, 5)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert same_state(layer, other)
    assert list(layer.state_dict()) == ["weight", "bias", "locations"]


def test_a_copy_is_independent() -> None:
    layer = FixedFanInLinear(30, 20, 5)
    twin = copy.deepcopy(layer)
    assert same_state(layer, twin)
    twin.reset_parameters()
    assert not torch.equal(layer.locations, twin.locations)


def test_casting_leaves_locations_alone() -> None:
    layer = FixedFanInLinear(30, 20, 5).to(torch.float64)
    assert layer.weight.dtype == torch.float64
    assert layer.locations.dtype == torch.int32


def test_a_layer_on_meta_is_filled_later() -> None:
    layer = FixedFanInLinear(1000, 10**7, 64, device="meta")
    result: Tensor = layer(torch.empty(3, 1000, device="meta"))
    assert result.shape == (3, 10**7)
    assert result.is_meta
    small = FixedFanInLinear(30, 20, 5, device="meta").to_empty(device="cpu")
    small.reset_parameters(seeded(1))
    assert same_state(small, FixedFanInLinear(30, 20, 5, generator=seeded(1)))
