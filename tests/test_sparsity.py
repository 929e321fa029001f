"""Exchange of connections: against plain loops, with what follows them, in time, resumed, and refused."""

import copy
import io
import math
import pickle
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_sparse_ops import _chunks, _connections, losses
from torch_sparse_ops.nn import FixedFanInLinear
from torch_sparse_ops.sparsity import SET, RigL, check_connections, prune

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
IN, OUT, FAN_IN, DROPPED = 20, 30, 6, 2
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters, **how: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **how),
    "Adam": lambda parameters, **how: torch.optim.Adam(parameters, lr=0.1, amsgrad=True, **how),
    "NAdam": lambda parameters, **how: torch.optim.NAdam(parameters, lr=0.1, **how),
    "AdamW": lambda parameters, **how: torch.optim.AdamW(parameters, lr=0.1, **how),
}
NO_FUSED = ("NAdam", "fused")
METHODS: dict[str, Callable[..., Any]] = {
    "SET": lambda module, optimizer, **options: SET(
        module, optimizer, generator=torch.Generator().manual_seed(3), **options
    ),
    "RigL": lambda module, optimizer, **options: RigL(module, optimizer, end=10**9, **options),
}


@pytest.fixture(params=[2**20, 3 * IN], ids=["one chunk", "chunks"])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connections, "CHUNK_ENTRIES", request.param)


def draw_layer(dtype: torch.dtype = torch.float32, **options: Any) -> FixedFanInLinear:
    generator = torch.Generator().manual_seed(0)
    return FixedFanInLinear(IN, OUT, FAN_IN, dtype=dtype, generator=generator, **options)


def draw_features(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(4, 2, IN, generator=torch.Generator().manual_seed(seed)).to(dtype)


def build_rigl(module: nn.Module) -> RigL:
    """One that exchanges DROPPED of FAN_IN connections in every step."""
    optimizer = torch.optim.SGD(module.parameters())
    return RigL(module, optimizer, end=10**9, interval=1, fraction=DROPPED / FAN_IN)


def learn(module: Callable[[Tensor], Tensor], features: Tensor) -> None:
    module(features).sin().sum().backward()


def by_connection(layer: FixedFanInLinear, values: Tensor) -> list[dict[int, float]]:
    """The value of each connection, by its input, for every output."""
    rows = zip(layer.locations.tolist(), values.tolist(), strict=True)
    return [dict(zip(*row, strict=True)) for row in rows]


def has_fan_in(layer: FixedFanInLinear) -> bool:
    rows = layer.locations.tolist()
    return all(row == sorted(set(row)) and len(row) == FAN_IN for row in rows)


# ---- RigL


def find_dense_gradient(layer: FixedFanInLinear, features: Tensor) -> Tensor:
    dense = copy.deepcopy(layer).to_dense()
    learn(dense, features)
    assert dense.weight.grad is not None
    return dense.weight.grad


def choose(weights: dict[int, float], gradient: list[float]) -> list[int]:
    """Connections of one output after an exchange, as the paper says."""
    kept = sorted(weights, key=lambda i: abs(weights[i]))[DROPPED:]
    candidates = [i for i in range(IN) if i not in kept]
    return sorted(kept + sorted(candidates, key=lambda i: abs(gradient[i]))[-DROPPED:])


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("location_dtype", [torch.uint16, torch.int32])
def test_rigl_is_a_loop_over_dense_rows(dtype: torch.dtype, location_dtype: torch.dtype) -> None:
    layer, features = draw_layer(dtype, location_dtype=location_dtype), draw_features(0, dtype)
    rigl = build_rigl(layer)
    before = by_connection(layer, layer.weight)
    gradients = find_dense_gradient(layer, features).tolist()
    learn(layer, features)
    assert rigl.step()
    after = by_connection(layer, layer.weight)
    assert [list(row) for row in after] == list(map(choose, before, gradients))
    assert after == [{i: old.get(i, 0.0) for i in new} for old, new in zip(before, after, strict=True)]
    assert before != after


def use_cross_entropy(layer: FixedFanInLinear, features: Tensor, fused: bool) -> Tensor:
    target = torch.arange(8).reshape(4, 2) * 3 % OUT
    if fused:
        return losses.linear_cross_entropy(features, layer, target, label_smoothing=0.1)
    logits = layer(features).flatten(0, -2)
    return nn.functional.cross_entropy(logits, target.flatten(), label_smoothing=0.1)


def use_binary_cross_entropy(layer: FixedFanInLinear, features: Tensor, fused: bool) -> Tensor:
    labels = torch.arange(16).reshape(4, 2, 2) * 5 % OUT
    if fused:
        return losses.linear_binary_cross_entropy_with_logits(features, layer, labels)
    dense = torch.zeros(4, 2, OUT, dtype=features.dtype).scatter(-1, labels, 1.0)
    return nn.functional.binary_cross_entropy_with_logits(layer(features), dense)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("loss", [use_cross_entropy, use_binary_cross_entropy])
def test_rigl_sees_through_losses_without_logits(
    loss: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_chunks.BLOCKS, "cpu", _chunks.Block(logits=7 * 8, rows=1024))
    layers = []
    for fused in (True, False):
        layer = draw_layer(torch.float64)
        rigl = build_rigl(layer)
        loss(layer, draw_features(0, torch.float64), fused).backward()
        assert rigl.step()
        layers.append(layer)
    assert torch.equal(layers[0].locations, layers[1].locations)
    assert not torch.equal(layers[0].locations, draw_layer().locations)


def test_rigl_finds_the_inputs_that_matter() -> None:
    generator = torch.Generator().manual_seed(1)
    teacher = FixedFanInLinear(64, 40, 4, bias=False, generator=generator)
    teacher.weight.data.sign_()
    student = FixedFanInLinear(64, 40, 4, bias=False, generator=generator)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.02)
    rigl = RigL(student, optimizer, interval=15, end=600, fraction=0.5)

    def count_found() -> int:
        pairs = zip(student.locations.tolist(), teacher.locations.tolist(), strict=True)
        return sum(len(set(ours) & set(theirs)) for ours, theirs in pairs)

    assert count_found() < 40
    for _ in range(600):
        features = torch.randn(128, 64, generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(student(features), teacher(features).detach()).backward()
        if not rigl.step():
            optimizer.step()
    assert count_found() > 120, "of 160"


class LargestTensor(TorchDispatchMode):
    """The most numbers that any result of an operator has."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


@pytest.mark.parametrize("method", METHODS)
def test_no_dense_matrix_is_ever_held(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connections, "CHUNK_ENTRIES", 2000)
    layer = FixedFanInLinear(500, 700, 3)
    exchange = METHODS[method](layer, torch.optim.SGD(layer.parameters()), interval=1, fraction=0.4)
    with LargestTensor() as largest:
        learn(layer, torch.randn(2, 500))
        assert exchange.step()
    assert 1000 <= largest.numbers <= 700 * 3  # dense: 350,000


def test_the_last_of_several_backward_passes_decides() -> None:
    results = []
    for seeds in ((1,), (0, 1), (0,)):
        layer = draw_layer()
        rigl = build_rigl(layer)
        for seed in seeds:
            learn(layer, draw_features(seed))
        rigl.step()
        results.append(layer.locations)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.usefixtures("compiler")
def test_a_compiled_layer_runs_eagerly_for_an_exchange() -> None:
    results = []
    for compiled in (True, False):
        layer = draw_layer()
        rigl = RigL(layer, torch.optim.SGD(layer.parameters()), end=10**9, interval=2, fraction=0.4)
        call = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
        for seed in range(4):
            with torch.compiler.set_stance("force_eager" if rigl.due else "default"):
                learn(call, draw_features(seed))
            assert rigl.step() == (seed % 2 == 1)
        results.append(layer.locations)
    assert torch.equal(*results)
    assert not torch.equal(results[0], draw_layer().locations)


def test_copies_of_an_observed_layer_are_not_observed() -> None:
    layer = draw_layer()
    build_rigl(layer)
    assert layer.grad_output_observer is not None
    assert copy.deepcopy(layer).grad_output_observer is None
    assert pickle.loads(pickle.dumps(layer)).grad_output_observer is None


# ---- SET


@pytest.mark.usefixtures("chunk")
def test_set_replaces_the_weakest_by_absent_inputs() -> None:
    layer = draw_layer()
    before = by_connection(layer, layer.weight)
    exchange = METHODS["SET"](
        layer, torch.optim.SGD(layer.parameters()), interval=1, fraction=DROPPED / FAN_IN
    )
    assert exchange.step()
    for old, new in zip(before, by_connection(layer, layer.weight), strict=True):
        kept = sorted(old, key=lambda i: abs(old[i]))[DROPPED:]
        assert set(old) & set(new) == set(kept)
        assert all(new[i] == old[i] for i in kept)
        drawn = [abs(new[i]) for i in new.keys() - kept]
        assert all(0 < value <= 1 / math.sqrt(FAN_IN) for value in drawn)
    assert has_fan_in(layer)


def test_set_draws_all_subsets_of_absent_inputs_alike() -> None:
    outputs = 20_000
    layer = FixedFanInLinear(8, outputs, 4, bias=False)
    layer.locations.copy_(torch.tensor([0, 2, 3, 6]).expand(outputs, 4))
    layer.weight.data.copy_(torch.tensor([1.0, 9.0, 9.0, 2.0]).expand(outputs, 4))
    METHODS["SET"](layer, torch.optim.SGD(layer.parameters()), interval=1, fraction=0.5).step()
    found: dict[tuple[int, ...], int] = {}
    for row in layer.locations.tolist():
        found[tuple(row)] = found.get(tuple(row), 0) + 1
    assert set(found) == {tuple(sorted((2, 3, *pair))) for pair in combinations([1, 4, 5, 7], 2)}
    expected = outputs / len(found)
    # Pearson's statistic has mean m and variance 2m for m degrees of freedom: five deviations.
    statistic = sum((count - expected) ** 2 / expected for count in found.values())
    assert statistic < 5 + 5 * math.sqrt(2 * 5)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("fan_in", [0, IN - 1, IN])
@pytest.mark.parametrize("method", METHODS)
def test_layers_with_few_absent_inputs_keep_their_fan_in(method: str, fan_in: int) -> None:
    layer = FixedFanInLinear(IN, OUT, fan_in)
    exchange = METHODS[method](layer, torch.optim.SGD(layer.parameters()), interval=1, fraction=1.0)
    for seed in range(3):
        learn(layer, draw_features(seed))
        assert exchange.step()
    check_connections(layer)


# ---- what both share


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_fan_in_holds_in_every_dtype(method: str, dtype: torch.dtype) -> None:
    layer = draw_layer(dtype, location_dtype=torch.int16)
    exchange = METHODS[method](layer, torch.optim.SGD(layer.parameters()), interval=1)
    for seed in range(5):
        learn(layer, draw_features(seed, dtype))
        exchange.step()
        assert has_fan_in(layer)
    assert not torch.equal(layer.locations, draw_layer().locations)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("name", "how"),
    [(name, {how: True}) for name in OPTIMIZERS for how in ("foreach", "fused") if (name, how) != NO_FUSED]
    + [("Adam", {"foreach": False})],
    ids=str,
)
def test_optimizer_state_follows_its_connection(method: str, name: str, how: dict[str, bool]) -> None:
    layer = draw_layer()
    optimizer = OPTIMIZERS[name](layer.parameters(), **how)
    exchange = METHODS[method](layer, optimizer, interval=4, fraction=0.34)
    for seed in range(3):
        optimizer.zero_grad()
        learn(layer, draw_features(seed))
        assert not exchange.step()
        optimizer.step()
    optimizer.zero_grad()
    learn(layer, draw_features(3))

    def read() -> dict[str, list[dict[int, float]]]:
        values = {key: v for key, v in optimizer.state[layer.weight].items() if v.dim() > 0}
        return {key: by_connection(layer, value) for key, value in values.items()}

    before = read()
    assert exchange.step()
    after = read()
    assert after
    for key, rows in after.items():
        expected = [{i: old.get(i, 0.0) for i in new} for old, new in zip(before[key], rows, strict=True)]
        assert rows == expected, key
        assert sum(value == 0.0 for row in rows for value in row.values()) > OUT / 2, "new ones begin at 0"
    optimizer.step()
    assert bool(layer.weight.isfinite().all())


@pytest.mark.parametrize("method", METHODS)
def test_training_resumes_as_if_it_had_not_stopped(method: str) -> None:
    def build() -> tuple[FixedFanInLinear, torch.optim.Optimizer, Any]:
        layer = draw_layer()
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
        return layer, optimizer, METHODS[method](layer, optimizer, interval=3)

    def train(parts: Any, seeds: range) -> None:
        layer, optimizer, exchange = parts
        for seed in seeds:
            optimizer.zero_grad()
            learn(layer, draw_features(seed))
            if not exchange.step():
                optimizer.step()

    whole, first, second = build(), build(), build()
    train(whole, range(14))
    train(first, range(8))  # the next step exchanges
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    file.seek(0)
    for part, state in zip(second, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(second, range(8, 14))
    for name, tensor in whole[0].state_dict().items():
        assert torch.equal(second[0].state_dict()[name], tensor), name


def test_a_generator_repeats_set() -> None:
    layers = [draw_layer() for _ in range(3)]
    for layer, seed in zip(layers, (5, 5, 6), strict=True):
        generator = torch.Generator().manual_seed(seed)
        SET(layer, torch.optim.SGD(layer.parameters()), interval=1, generator=generator).step()
    assert torch.equal(layers[0].locations, layers[1].locations)
    assert torch.equal(layers[0].weight, layers[1].weight)
    assert not torch.equal(layers[0].locations, layers[2].locations)


@pytest.mark.parametrize(
    ("method", "exchanged"), [("RigL", [10, 20, 30, 40]), ("SET", [10, 20, 30, 40, 50, 60])]
)
def test_exchanges_happen_at_the_interval_until_the_end(method: str, exchanged: list[int]) -> None:
    layer = draw_layer()
    options = {"end": 45} if method == "RigL" else {}
    exchange = {"RigL": RigL, "SET": SET}[method](
        layer, torch.optim.SGD(layer.parameters()), interval=10, **options
    )
    happened = []
    for call in range(1, 65):
        learn(layer, draw_features(call))
        if exchange.step():
            happened.append(call)
    assert happened == exchanged


def test_rigl_exchanges_less_and_less_along_a_cosine() -> None:
    layer = FixedFanInLinear(100, 50, 40)
    rigl = RigL(layer, torch.optim.SGD(layer.parameters()), interval=1, end=100, fraction=0.5)
    counts = []
    for call in range(1, 100):
        before = [set(row) for row in layer.locations.tolist()]
        counts.append(rigl._count_dropped(layer))
        learn(layer, torch.randn(3, 100))
        rigl.step()
        changed = [len(set(now) - then) for now, then in zip(layer.locations.tolist(), before, strict=True)]
        assert max(changed) <= counts[-1]
        assert counts[-1] == round(40 * 0.25 * (1 + math.cos(math.pi * call / 100)))
    assert counts == sorted(counts, reverse=True)
    assert (counts[0], counts[49], counts[-1]) == (20, 10, 0)


def test_every_layer_of_a_model_takes_part() -> None:
    first, last = FixedFanInLinear(IN, IN, 5), draw_layer()
    model = nn.Sequential(first, nn.Tanh(), last)
    before = [layer.locations.clone() for layer in (first, last)]
    rigl = build_rigl(model)
    assert list(rigl.layers) == ["0", "2"]
    learn(model, draw_features())
    rigl.step()
    for layer, locations in zip((first, last), before, strict=True):
        assert not torch.equal(layer.locations, locations)


# ---- pruning


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("fan_in", [0, 1, 4, FAN_IN])
@pytest.mark.parametrize("bias", [True, False])
def test_prune_keeps_the_largest_weights(fan_in: int, bias: bool) -> None:
    layer = draw_layer(bias=bias, location_dtype=torch.int16)
    pruned = prune(layer, fan_in)
    check_connections(pruned)
    expected = FixedFanInLinear.from_dense(layer.to_dense(), fan_in)
    assert pruned.locations.dtype == torch.int16
    assert torch.equal(pruned.locations.int(), expected.locations)
    for ours, theirs in zip(pruned.parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_prune_takes_dense_layers() -> None:
    dense = nn.Linear(IN, OUT)
    pruned, expected = prune(dense, 3), FixedFanInLinear.from_dense(dense, 3)
    assert torch.equal(pruned.locations, expected.locations)
    assert torch.equal(pruned.weight, expected.weight)


# ---- refusals


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([3, 1, 3, 4, 5, 6], "locations of row 17: received 3 twice, accepted is distinct inputs"),
        ([0, 1, 2, 3, 4, IN], r"locations of row 17: received 20, accepted is 0 to 19 \(in_features - 1\)"),
        ([-1, 1, 2, 3, 4, 5], "locations of row 17: received -1, accepted is 0 to 19"),
    ],
)
def test_wrong_connections_are_refused_by_their_row(row: list[int], message: str) -> None:
    layer = draw_layer()
    check_connections(layer)
    layer.locations[17] = torch.tensor(row)
    with pytest.raises(ValueError, match=message):
        check_connections(layer)
    with pytest.raises(ValueError, match=message):
        SET(layer, torch.optim.SGD(layer.parameters()), interval=1)


def test_locations_of_another_shape_are_refused() -> None:
    layer = draw_layer()
    layer.locations = layer.locations[:, :4]
    with pytest.raises(ValueError, match=r"locations: received shape \[30, 4\], accepted is \[30, 6\]"):
        check_connections(layer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval": 0}, "SET: received interval=0, accepted is 1 or more"),
        ({"fraction": 0.0}, "SET: received fraction=0.0, accepted is above 0 and up to 1"),
        ({"fraction": 1.5}, "SET: received fraction=1.5, accepted is above 0 and up to 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    layer = draw_layer()
    with pytest.raises(ValueError, match=message):
        SET(layer, torch.optim.SGD(layer.parameters()), **{"interval": 1, **options})


def test_a_module_without_layers_is_refused() -> None:
    module = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="RigL: received a module without any FixedFanInLinear"):
        RigL(module, torch.optim.SGD(module.parameters()), end=9)


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    model = nn.ModuleDict({"output": draw_layer()})
    with pytest.raises(ValueError, match="RigL: the optimizer does not have the weight of layer 'output'"):
        RigL(model, torch.optim.SGD(nn.Linear(2, 2).parameters()), end=9)


def test_a_parametrised_weight_is_refused() -> None:
    model = nn.ModuleDict({"output": nn.utils.parametrizations.weight_norm(draw_layer())})
    with pytest.raises(
        ValueError, match=r"'output' is parametrised; call torch\.nn\.utils\.parametrize\.rem"
    ):
        SET(model, torch.optim.SGD(model.parameters()), interval=1)


def test_an_optimizer_that_keeps_other_shapes_is_refused() -> None:
    layer = draw_layer()
    optimizer = torch.optim.Adafactor(layer.parameters())
    exchange = SET(layer, optimizer, interval=2)
    learn(layer, draw_features())
    exchange.step()
    optimizer.step()
    message = r"SET: Adafactor keeps 'row_var' of shape \[30, 1\]; accepted is \[30, 6\], one number for each"
    with pytest.raises(ValueError, match=message):
        exchange.step()


def test_rigl_without_a_gradient_is_refused() -> None:
    model = nn.ModuleDict({"output": draw_layer()})
    rigl = RigL(model, torch.optim.SGD(model.parameters()), end=9, interval=1)
    with pytest.raises(RuntimeError, match=r"layer 'output' has seen no gradient of output 0.*force_eager"):
        rigl.step()


def test_prune_refuses_more_connections_than_there_are() -> None:
    with pytest.raises(ValueError, match="prune: received fan_in=7; accepted is 0 to 6, the present one"):
        prune(draw_layer(), 7)
