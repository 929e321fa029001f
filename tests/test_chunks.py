"""How layers are cut."""

import pytest
import torch
from torch_sparse_ops import _chunks


@pytest.mark.parametrize("batch", [0, 1, 7, 1024, 5000])
def test_blocks_cover_all_outputs_and_hold_so_many_logits(batch: int) -> None:
    layer = _chunks.Layer(torch.empty(9_000_001, 1), torch.empty(9_000_001, 1), None, torch.float32)
    rows, chunks = _chunks.cut_rows(batch), list(_chunks.iterate_chunks(layer, batch))
    height, width = rows[0].stop, chunks[0].outputs.stop
    assert height * width <= _chunks.BLOCK_LOGITS < 2 * max(height, 1) * width
    ends = [(part.start, part.stop) for part in (chunk.outputs for chunk in chunks)]
    assert [end for _, end in ends] == [start for start, _ in ends[1:]] + [9_000_001]
    assert rows[-1].stop == batch


def test_few_widths_serve_all_batches() -> None:
    layer = _chunks.Layer(torch.empty(9_000_001, 1), torch.empty(9_000_001, 1), None, torch.float32)
    widths = {next(_chunks.iterate_chunks(layer, batch)).outputs.stop for batch in range(3000)}
    assert widths == {2**exponent for exponent in range(12, 23)}
