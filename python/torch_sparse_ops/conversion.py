"""Fixed fan-in layers out of others and back: whole models by the names of their modules, and CSR matrices.

Single layers: ``FixedFanInLinear.from_dense`` and ``FixedFanInLinear.to_dense``.
"""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TypeVar

import torch
from torch import Tensor, nn

from torch_sparse_ops._connections import check_connections
from torch_sparse_ops.nn import FixedFanInLinear

__all__ = ["densify", "from_csr", "sparsify", "to_csr"]

Names = str | Callable[[str, nn.Module], bool]
Old = TypeVar("Old", nn.Linear, FixedFanInLinear)
SHOWN_NAMES = 10  # of those that a message lists


# ---- models


def sparsify(model: nn.Module, names: Names, fan_in: int, *, untie: bool = False) -> list[str]:
    """Replace dense layers of a model by fixed fan-in layers with their largest weights, in place.

    Layers that share a weight share it afterwards, too. Make the optimiser after this: parameters are new.
    A module that reads the weights of its layers instead of calling them, as ``nn.TransformerEncoderLayer``
    does in evaluation, fails with another layer in their place.

    Args:
        model: to change.
        names: of ``torch.nn.Linear`` modules, as in ``named_modules``: a pattern such as ``"decoder.*.out"``
            (``*`` stands for dots as well), or a function of name and module.
        fan_in: connections to keep of each output.
        untie: let go of a weight that other modules, which stay, have too; for example an embedding.

    Returns:
        The names of the replaced modules.

    Raises:
        ValueError: no or another kind of module is named; ``fan_in`` exceeds the inputs; a weight is
            parametrised, or shared with a module that stays.
    """

    def make(dense: nn.Linear) -> FixedFanInLinear:
        return FixedFanInLinear.from_dense(dense, fan_in)

    return _replace("sparsify", model, names, nn.Linear, make, untie)


def densify(model: nn.Module, names: Names = "*", *, untie: bool = False) -> list[str]:
    """Replace fixed fan-in layers of a model by dense ones that compute the same, in place.

    Args:
        model: to change.
        names: of ``FixedFanInLinear`` modules, as for :func:`sparsify`.
        untie: as for :func:`sparsify`.

    Returns:
        The names of the replaced modules.

    Raises:
        ValueError: as for :func:`sparsify`.
    """
    return _replace("densify", model, names, FixedFanInLinear, FixedFanInLinear.to_dense, untie)


def _replace(
    function: str,
    model: nn.Module,
    names: Names,
    kind: type[Old],
    make: Callable[[Old], nn.Module],
    untie: bool,
) -> list[str]:
    chosen = _choose(function, model, names, kind)
    if not untie:
        _refuse_tied(function, model, chosen)
    made: dict[nn.Module, nn.Module] = {}
    first: dict[tuple[int, int], nn.Module] = {}
    for name, old in chosen.items():
        if old not in made:
            new = made[old] = make(old).train(old.training)
            _copy_requires_grad(old, new)
            tied = (id(old.weight), id(getattr(old, "locations", None)))
            _share(new, first.setdefault(tied, new))
        model.set_submodule(name, made[old])
    return list(chosen)


def _share(new: nn.Module, first: nn.Module) -> None:
    """Let layers that had one weight have one again; equal weights gave them equal locations."""
    for name in ("weight", "locations"):
        if hasattr(first, name):
            setattr(new, name, getattr(first, name))


def _copy_requires_grad(old: nn.Module, new: nn.Module) -> None:
    for name, parameter in old.named_parameters():
        new.get_parameter(name).requires_grad_(parameter.requires_grad)


def _choose(function: str, model: nn.Module, names: Names, kind: type[Old]) -> dict[str, Old]:
    """Return the modules that are named, under all their names."""
    everything = dict(model.named_modules(remove_duplicate=False))
    if isinstance(names, str):
        # A pattern may name containers as well; of these, none is meant.
        chosen = {n: m for n, m in everything.items() if fnmatchcase(n, names) and isinstance(m, kind)}
    else:
        chosen = {n: m for n, m in everything.items() if names(n, m)}
    if not chosen:
        present = [name for name, module in everything.items() if type(module) is kind]
        accepted = ", ".join(present[:SHOWN_NAMES]) or "none"
        raise ValueError(f"{function}: {names!r} names no {kind.__name__}; the model has: {accepted}")
    for name, module in chosen.items():
        _check_module(function, name, module, kind)
    found = set(chosen.values())  # under other names, too
    return {n: m for n, m in everything.items() if m in found and isinstance(m, kind)}


def _check_module(function: str, name: str, module: nn.Module, kind: type[nn.Module]) -> None:
    if name == "":
        single = "FixedFanInLinear.from_dense" if kind is nn.Linear else "FixedFanInLinear.to_dense"
        raise ValueError(f"{function}: the model is itself the layer; use {single}")
    if nn.utils.parametrize.is_parametrized(module):
        raise ValueError(
            f"{function}: module {name!r} is parametrised; call "
            "torch.nn.utils.parametrize.remove_parametrizations on it first"
        )
    if type(module) is not kind:
        raise ValueError(
            f"{function}: module {name!r}: received {type(module).__name__}, accepted is {kind.__name__} "
            "itself, since a class of its own may compute something else; leave it out of the names"
        )


def _refuse_tied(function: str, model: nn.Module, chosen: dict[str, Old]) -> None:
    leaving, weights = set(chosen.values()), {layer.weight: name for name, layer in chosen.items()}
    for name, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if module not in leaving and parameter in weights:
                raise ValueError(
                    f"{function}: the weight of {weights[parameter]!r} is also {name}.{key}, which would "
                    "stay; name that module, too, or let go of the tie with untie=True"
                )


# ---- CSR


@torch.no_grad()
def to_csr(layer: FixedFanInLinear) -> Tensor:
    """Return the weights as ``torch.sparse_csr [out_features, in_features]``, ``fan_in`` entries a row.

    Raises:
        ValueError: an input occurs twice in a row.
    """
    check_connections(layer)
    columns, order = layer.locations.long().sort(dim=1)
    rows = torch.arange(layer.out_features + 1, device=columns.device) * layer.fan_in
    values = layer.weight.detach().gather(1, order).flatten()
    return torch.sparse_csr_tensor(
        rows, columns.flatten(), values, size=(layer.out_features, layer.in_features), check_invariants=True
    )


@torch.no_grad()
def from_csr(
    matrix: Tensor, fan_in: int | None = None, *, bias: Tensor | None = None, prune: bool = False
) -> FixedFanInLinear:
    """Return a layer with the entries of a sparse matrix as its weights.

    A row with fewer entries than ``fan_in`` gets weights of zero at the first inputs that it does not have.

    Args:
        matrix: ``torch.sparse_csr [out_features, in_features]``.
        fan_in: connections of each output; None takes the most entries of a row.
        bias: ``[out_features]`` or None for none.
        prune: keep the largest entries by magnitude of a row that has more than ``fan_in``.

    Raises:
        ValueError: another layout or shape; a row has too many entries and is not to be pruned, or one column
            twice; ``fan_in`` exceeds the columns.
    """
    if matrix.layout != torch.sparse_csr or matrix.dim() != 2:
        received = f"{matrix.dim()}-dimensional {matrix.layout}"
        accepted = "2-dimensional torch.sparse_csr; to_sparse_csr() makes one"
        raise ValueError(f"from_csr: received {received}, accepted is {accepted}")
    out_features, in_features = matrix.shape
    counts = matrix.crow_indices().diff()
    most = int(counts.max()) if out_features else 0
    fan_in = most if fan_in is None else fan_in
    if most > fan_in and not prune:
        raise ValueError(
            f"from_csr: row {int(counts.argmax())} has {most} entries, accepted is fan_in={fan_in} at most; "
            "give a larger fan_in, or keep the largest entries with prune=True"
        )
    layer = FixedFanInLinear(
        in_features, out_features, fan_in, bias is not None, device="meta", dtype=matrix.dtype
    ).to_empty(device=matrix.device)
    values, columns = _pad_rows(*_keep_largest(matrix, fan_in), (out_features, fan_in), in_features)
    layer.weight.copy_(values)
    layer.locations.copy_(columns)
    check_connections(layer)
    if layer.bias is not None and bias is not None:
        layer.bias.copy_(bias)
    return layer


def _keep_largest(matrix: Tensor, fan_in: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts ``[rows]``, and columns and values of the ``fan_in`` largest entries of each row."""
    starts, columns, values = matrix.crow_indices(), matrix.col_indices().long(), matrix.values()
    counts = starts.diff()
    rows = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    order = values.abs().argsort(descending=True)
    order = order[rows[order].argsort(stable=True)]  # row by row, the largest first
    ranks = torch.arange(len(order), device=order.device) - starts[rows]
    kept = order[ranks < fan_in].sort().values
    return counts.clamp(max=fan_in), columns[kept], values[kept]


def _pad_rows(
    counts: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int], in_features: int
) -> tuple[Tensor, Tensor]:
    """Return values and columns as ``[rows, fan_in]``, with zeros at the first columns that a row has not."""
    slots = torch.arange(size[1], device=counts.device)
    present = slots < counts[:, None]
    padded = values.new_zeros(size)
    padded[present] = values
    places = torch.full(size, in_features, device=counts.device)
    places[present] = columns
    # Entry k of a row has places[k] - k absent columns before it; the absent one of rank r follows the
    # entries that have at most r.
    absent_before = torch.where(present, places - slots, in_features)
    ranks = slots - counts[:, None]
    absent = ranks + torch.searchsorted(absent_before, ranks, right=True)
    places, order = torch.where(present, places, absent).sort(dim=1)
    return padded.gather(1, order), places
