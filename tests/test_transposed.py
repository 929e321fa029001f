"""The connections of each input, on the CPU: sorted, kept, forgotten; and the switch to atomic sums."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch_sparse_ops import _transposed

INDEX_DTYPES = [torch.int16, torch.uint16, torch.int32, torch.int64]


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(_transposed.ATOMICS, raising=False)
    _transposed._kept.clear()
    yield
    _transposed._kept.clear()


def ask(locations: Tensor, in_features: int = 7) -> tuple[Tensor, Tensor]:
    """Ask as the CUDA library does."""
    offsets, order = torch.ops.torch_sparse_ops._ffi_transpose(locations, in_features)
    return offsets, order


def draw(dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.randint(7, (5, 3), generator=torch.Generator().manual_seed(3)).to(dtype)


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
def test_connections_are_sorted_by_input_then_by_number(dtype: torch.dtype) -> None:
    locations = draw(dtype)
    offsets, order = ask(locations)
    assert (offsets.dtype, order.dtype) == (torch.int64, torch.int32)
    read = locations.flatten().tolist()
    for i in range(7):
        assert order[offsets[i] : offsets[i + 1]].tolist() == [
            c for c, input in enumerate(read) if input == i
        ]


@pytest.mark.parametrize("shape", [(0, 3), (5, 0)])
def test_no_connections(shape: tuple[int, int]) -> None:
    offsets, order = ask(torch.zeros(shape, dtype=torch.int32))
    assert offsets.tolist() == [0] * 8
    assert order.tolist() == []


@pytest.mark.parametrize("value", [-1, 7, 2**32 + 1])
def test_a_location_out_of_range_is_refused(value: int) -> None:
    locations = draw(torch.int64)
    locations[2, 1] = value
    with pytest.raises(
        RuntimeError, match=r"ffi_backward: locations: accepted is 0 to 6 \(in_features - 1\)"
    ):
        ask(locations)


def test_a_trusted_location_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_transposed.CHECK, "0")
    locations = draw()
    locations[2, 1] = 7
    offsets, _ = ask(locations)
    assert offsets[-1] == 14


# ---- what is kept


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t.detach(), lambda t: t.view_as(t)])
def test_the_same_memory_is_sorted_once(view: Callable[[Tensor], Tensor]) -> None:
    locations = draw()
    first, again = ask(locations), ask(view(locations))
    assert [t.data_ptr() for t in first] == [t.data_ptr() for t in again]


@pytest.mark.parametrize(
    "other", [lambda t: t.clone(), lambda t: t[1:], lambda t: t.t(), lambda t: t.view(torch.int16)[:, ::2]]
)
def test_other_locations_are_sorted_anew(other: Callable[[Tensor], Tensor]) -> None:
    locations = draw()
    ask(locations)
    changed = other(locations)
    for kept, made in zip(ask(changed), _transposed.transpose(changed, 7), strict=True):
        torch.testing.assert_close(kept, made)


def test_changed_locations_are_sorted_anew() -> None:
    locations = draw()
    ask(locations)
    locations.copy_(locations.flip(0))
    torch.testing.assert_close(ask(locations), _transposed.transpose(locations, 7))
    assert len(_transposed._kept) == 1


def test_another_number_of_inputs_is_another_answer() -> None:
    locations = draw()
    assert len(ask(locations)[0]) == 8
    assert len(ask(locations, 9)[0]) == 10


def test_what_is_kept_goes_with_the_locations() -> None:
    for _ in range(5):
        ask(draw())
    assert len(_transposed._kept) == 1


def test_locations_without_a_version_are_not_kept() -> None:
    with torch.inference_mode():
        locations = draw()
    torch.testing.assert_close(ask(locations), _transposed.transpose(locations, 7))
    assert _transposed._kept == {}


# ---- the switch


def test_atomic_sums_are_asked_for_by_empty_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_transposed.ATOMICS, "1")
    assert [t.numel() for t in ask(draw())] == [0, 0]


def test_deterministic_algorithms_overrule_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_transposed.ATOMICS, "1")
    torch.use_deterministic_algorithms(True)
    try:
        assert [t.numel() for t in ask(draw())] == [8, 15]
    finally:
        torch.use_deterministic_algorithms(False)


def test_another_value_of_the_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_transposed.ATOMICS, "yes")
    with pytest.raises(RuntimeError, match=f"{_transposed.ATOMICS}: received yes, accepted is 0 .* or 1"):
        ask(draw())
