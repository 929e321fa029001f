"""How layers are cut."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch_sparse_ops import _chunks

OUTPUTS = 9_000_001
LAYER = _chunks.Layer(torch.empty(OUTPUTS, 1), torch.empty(OUTPUTS, 1), None, torch.float32)


@pytest.mark.parametrize("batch", [0, 1, 7, 1024, 5000])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_blocks_cover_all_outputs_and_hold_so_many_logits(batch: int, device: str) -> None:
    with FakeTensorMode():
        features = torch.empty(batch, 3, device=device)
    rows, chunks = _chunks.cut_rows(features), list(_chunks.iterate_chunks(LAYER, features))
    height, width = rows[0].stop, chunks[0].outputs.stop
    assert height * width <= _chunks.BLOCKS[device].logits < 2 * max(height, 1) * width
    ends = [(part.start, part.stop) for part in (chunk.outputs for chunk in chunks)]
    assert [end for _, end in ends] == [start for start, _ in ends[1:]] + [OUTPUTS]
    assert rows[-1].stop == batch


def test_few_widths_serve_all_batches() -> None:
    features = torch.empty(3000, 1)
    widths = {next(_chunks.iterate_chunks(LAYER, features[:batch])).outputs.stop for batch in range(3000)}
    assert widths == {2**exponent for exponent in range(11, 20)}
