"""Conversion of whole models and of CSR matrices, and what is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_sparse_ops.conversion import densify, from_csr, sparsify, to_csr
from torch_sparse_ops.nn import FixedFanInLinear
from torch_sparse_ops.sparsity import check_connections

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


class Tower(nn.Module):
    """Two blocks, an embedding, and two heads with one weight."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 12)
        self.blocks = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(12, 12)}) for _ in range(2))
        self.head = nn.Linear(12, 9)
        self.other = nn.Linear(12, 9)
        self.other.weight = self.head.weight
        self.again = self.head
        if tied:
            self.head.weight = self.other.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        features = self.embedding(words)
        for block in self.blocks:
            features = torch.tanh(block.get_submodule("up")(features))
        result: Tensor = self.head(features) + self.other(features) + self.again(features)
        return result


WORDS = torch.arange(9)


# ---- models


@pytest.mark.parametrize(
    ("names", "replaced"),
    [
        ("blocks.*", ["blocks.0.up", "blocks.1.up"]),
        ("blocks.1.up", ["blocks.1.up"]),
        ("*", ["blocks.0.up", "blocks.1.up", "head", "other", "again"]),
        (lambda name, module: getattr(module, "out_features", 0) == 9, ["head", "other", "again"]),
    ],
    ids=["pattern", "name", "all", "function"],
)
def test_modules_are_named_by_pattern_or_function(
    names: str | Callable[[str, nn.Module], bool], replaced: list[str]
) -> None:
    model = Tower()
    expected = {name: FixedFanInLinear.from_dense(model.get_submodule(name), 5) for name in replaced}  # type: ignore[arg-type]
    assert sparsify(model, names, 5) == replaced
    modules = dict(model.named_modules(remove_duplicate=False))
    assert [name for name, m in modules.items() if isinstance(m, FixedFanInLinear)] == replaced
    for name, layer in expected.items():
        for key, tensor in layer.state_dict().items():
            assert torch.equal(model.get_submodule(name).state_dict()[key], tensor)


def test_a_model_computes_the_same_with_all_connections_and_back() -> None:
    model = Tower()
    expected = model(WORDS)
    sparsify(model, "*", 12)
    torch.testing.assert_close(model(WORDS), expected)
    assert densify(model) == ["blocks.0.up", "blocks.1.up", "head", "other", "again"]
    assert not any(isinstance(module, FixedFanInLinear) for module in model.modules())
    torch.testing.assert_close(model(WORDS), expected)


def test_what_was_shared_is_shared_in_either_direction() -> None:
    model = Tower()
    for sparse in (True, False):
        names = sparsify(model, "*", 5) if sparse else densify(model)
        assert len(names) == 5
        assert model.again is model.head
        assert model.other is not model.head
        assert model.other.weight is model.head.weight
        assert model.other.bias is not model.head.bias
    sparsify(model, "*", 5)
    assert model.other.locations is model.head.locations


def test_a_shared_module_is_replaced_under_all_its_names() -> None:
    model = Tower()
    del model.other
    assert sparsify(model, "head", 5) == ["head", "again"]
    assert model.again is model.head


def test_modes_dtypes_and_frozen_parameters_stay() -> None:
    model = Tower().to(torch.bfloat16).eval()
    model.blocks.requires_grad_(False)
    sparsify(model, "*", 5)
    for module in model.modules():
        if isinstance(module, FixedFanInLinear):
            assert not module.training
            assert module.weight.dtype == torch.bfloat16
    assert {p.requires_grad for p in model.blocks.parameters()} == {False}
    assert {p.requires_grad for p in model.head.parameters()} == {True}


def test_a_converted_model_learns() -> None:
    torch.manual_seed(0)
    model = Tower()
    sparsify(model, "*", 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(WORDS), WORDS.flip(0))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    assert found[-1] < found[0] / 10


def test_a_weight_that_another_module_has_is_refused() -> None:
    model = Tower(tied=True)
    message = r"the weight of '.*' is also embedding\.weight, which would stay; .*untie=True"
    with pytest.raises(ValueError, match=message):
        sparsify(model, "*", 5)
    assert model.head.weight is model.embedding.weight, "nothing was changed"
    sparsify(model, "*", 5, untie=True)
    assert model.head.weight.shape == (9, 5)
    assert model.embedding.weight.shape == (9, 12)


def test_half_of_a_shared_weight_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sparsify: the weight of 'other' is also head\.weight"):
        sparsify(Tower(), "other", 5)


@pytest.mark.parametrize(
    ("model", "names", "message"),
    [
        (
            Tower(),
            "heads",
            "sparsify: 'heads' names no Linear; the model has: blocks.0.up, blocks.1.up, head, ",
        ),
        (Tower(), "blocks", "sparsify: 'blocks' names no Linear; the model has"),
        (nn.Linear(3, 3), "*", "the model is itself the layer; use FixedFanInLinear.from_dense"),
        (
            nn.TransformerEncoderLayer(8, 2),
            "*",
            "'self_attn.out_proj': received NonDynamicallyQuantizableLinear, accepted is Linear itself",
        ),
        (
            nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))),
            "0",
            "module '0' is parametrised; call torch.nn.utils.parametrize.remove_parametrizations",
        ),
        (Tower(), lambda name, _: name == "embedding", "'embedding': received Embedding, accepted is Linear"),
    ],
)
def test_wrong_names_are_refused(
    model: nn.Module, names: str | Callable[[str, nn.Module], bool], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sparsify(model, names, 2)


def test_more_connections_than_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="received in_features=12, out_features=12, fan_in=13"):
        sparsify(Tower(), "blocks.*", 13)


def test_nothing_to_make_dense_is_refused() -> None:
    with pytest.raises(ValueError, match="densify: '\\*' names no FixedFanInLinear; the model has: none"):
        densify(Tower())


# ---- CSR


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_layer_survives_the_way_to_csr_and_back(dtype: torch.dtype) -> None:
    layer = FixedFanInLinear(30, 20, 5, dtype=dtype)
    matrix = to_csr(layer)
    assert matrix.layout == torch.sparse_csr
    assert torch.equal(matrix.to_dense(), layer.to_dense().weight)
    again = from_csr(matrix, bias=layer.bias)
    for name, tensor in layer.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_csr_is_ordered_and_checked() -> None:
    layer = FixedFanInLinear(30, 20, 5)
    layer.locations.copy_(layer.locations.flip(1))
    layer.weight.data.copy_(layer.weight.flip(1))
    assert torch.equal(to_csr(layer).to_dense(), layer.to_dense().weight)
    layer.locations[3] = 7
    with pytest.raises(ValueError, match="locations of row 3: received 7 twice"):
        to_csr(layer)


#: Rows with 3, 0, 5, 1 and 2 of 5 entries.
UNEVEN = torch.tensor(
    [
        [0.0, 2.0, -3.0, 1.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [1.0, -5.0, 4.0, 2.0, 3.0],
        [0.0, 0.0, 0.0, 0.0, 6.0],
        [7.0, 0.0, 0.0, 8.0, 0.0],
    ]
)


@pytest.mark.parametrize("fan_in", [None, 5])
def test_short_rows_are_padded_with_zeros(fan_in: int | None) -> None:
    layer = from_csr(UNEVEN.to_sparse_csr(), fan_in)
    assert layer.fan_in == 5
    assert layer.bias is None
    check_connections(layer)
    assert torch.equal(layer.to_dense().weight, UNEVEN)


@pytest.mark.parametrize(
    ("fan_in", "locations", "weights"),
    [
        (3, [[1, 2, 3], [0, 1, 2], [1, 2, 4], [0, 1, 4], [0, 1, 3]], [2.0, -3.0, 1.0]),
        (2, [[1, 2], [0, 1], [1, 2], [0, 4], [0, 3]], [2.0, -3.0]),
        (1, [[2], [0], [1], [4], [3]], [-3.0]),
        (0, [[], [], [], [], []], []),
    ],
)
def test_long_rows_are_pruned_on_demand(
    fan_in: int, locations: list[list[int]], weights: list[float]
) -> None:
    layer = from_csr(UNEVEN.to_sparse_csr(), fan_in, prune=True)
    assert layer.locations.tolist() == locations
    assert layer.weight[0].tolist() == weights
    dense = layer.to_dense().weight
    assert bool(((dense == UNEVEN) | (dense == 0)).all())
    assert dense.count_nonzero() == sum(min(count, fan_in) for count in (3, 0, 5, 1, 2))


def test_long_rows_are_refused_otherwise() -> None:
    message = "row 2 has 5 entries, accepted is fan_in=3 at most; give a larger fan_in, or .* prune=True"
    with pytest.raises(ValueError, match=message):
        from_csr(UNEVEN.to_sparse_csr(), 3)


@pytest.mark.parametrize("matrix", [UNEVEN, UNEVEN.to_sparse_coo(), UNEVEN.expand(2, 5, 5).to_sparse_csr()])
def test_other_layouts_are_refused(matrix: Tensor) -> None:
    message = (
        f"received {matrix.dim()}-dimensional {matrix.layout}, accepted is 2-dimensional torch.sparse_csr"
    )
    with pytest.raises(ValueError, match=message):
        from_csr(matrix)


def test_a_column_that_occurs_twice_is_refused() -> None:
    matrix = torch.sparse_csr_tensor([0, 1, 3], [0, 2, 2], [1.0, 2.0, 3.0], size=(2, 3))
    with pytest.raises(ValueError, match="locations of row 1: received 2 twice"):
        from_csr(matrix)


@pytest.mark.parametrize("size", [(0, 4), (4, 0), (0, 0)])
def test_empty_matrices(size: tuple[int, int]) -> None:
    layer = from_csr(torch.zeros(size).to_sparse_csr())
    assert (layer.out_features, layer.in_features, layer.fan_in) == (*size, 0)


def test_a_large_uneven_matrix_is_never_dense() -> None:
    rows = torch.cat((torch.zeros(50_000), torch.arange(300_000))).long()
    columns = torch.cat((torch.arange(50_000), torch.arange(300_000) % 50_000)).long()
    values = torch.rand(350_000) + 1
    matrix = torch.sparse_coo_tensor(torch.stack((rows, columns)), values, (300_000, 50_000)).coalesce()
    layer = from_csr(matrix.to_sparse_csr(), 2, prune=True)  # dense: 60 GB
    check_connections(layer)
    assert torch.equal(layer.weight[1:].amax(dim=1).double(), values[50_001:].double())
