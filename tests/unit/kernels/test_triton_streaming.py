"""The reading kernel: every chunk is read."""

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from opscope.errors import InputError  # noqa: E402
from opscope.kernels.triton import load_triton  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="the kernels are compiled")

CHUNK = 2048


def read(source, programs, **how):
    run = load_triton("streaming", interpret=True).read_chunks
    return run(source, torch.full((programs,), torch.nan), **how)


def random(chunks):
    return torch.randn(chunks * CHUNK, generator=torch.Generator().manual_seed(0))


def test_programs_that_share_a_buffer_out_read_each_chunk_once():
    source = random(12)
    sums = read(source, 4, reads=3, first_step=1, next_step=4)
    by_chunk = source.view(3, 4, CHUNK).sum(dim=(0, 2))
    assert torch.allclose(sums, by_chunk, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("chunks", [1, 7, 96])
def test_programs_that_each_read_everything_begin_at_different_chunks(chunks):
    source = random(chunks)
    sums = read(source, 5, reads=chunks, first_step=97, next_step=1)
    assert torch.allclose(sums, source.sum().expand(5), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    ("source", "next_step", "message"),
    [
        (torch.zeros(CHUNK + 1), 1, "whole chunks of 2048"),
        (torch.zeros(CHUNK, dtype=torch.float64), 1, "contiguous float32"),
        (torch.zeros(2, CHUNK)[:, ::2].expand(2, CHUNK // 2), 1, "contiguous"),
        (torch.zeros(2 * CHUNK), 3, "a step of 3 chunks in a buffer of 2"),
    ],
)
def test_other_buffers_are_refused(source, next_step, message):
    with pytest.raises(InputError, match=message):
        read(source, 2, reads=1, first_step=1, next_step=next_step)
