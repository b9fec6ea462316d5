"""The reading kernel: every chunk is read, and by loads that bypass the first-level cache."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from opscope.errors import InputError  # noqa: E402
from opscope.kernels.triton_loader import interpreted, load_triton  # noqa: E402

CHUNK = 2048


def read(source, programs, **how):
    run = interpreted(load_triton("streaming", interpret=True).read_chunks)
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


def test_a_program_begins_where_it_is_told():
    source = random(7)
    sums = read(source, 3, reads=1, first_step=97, next_step=1)
    starts = [program * 97 % 7 for program in range(3)]
    assert torch.allclose(sums, source.view(7, CHUNK).sum(1)[starts], rtol=1e-4, atol=1e-3)


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


def test_loads_are_16_bytes_wide_and_bypass_l1(monkeypatch, tmp_path):
    pytest.importorskip("triton.tools.tensor_descriptor")  # the form of ASTSource used here is as old
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is unset
    module = load_triton("streaming")
    names = module.read_chunks_kernel.arg_names
    signature = {
        name: "*fp32" if name.endswith("_ptr") else "constexpr" if name == "CHUNK" else "i32"
        for name in names
    }
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in names if name.endswith("_ptr")}
    source = ASTSource(module.read_chunks_kernel, signature, {(names.index("CHUNK"),): module.CHUNK}, aligned)
    target = GPUTarget("cuda", 90, 32)
    text = triton.compile(source, target=target, options={"num_warps": module.WARPS}).asm["ptx"]
    loads = [line.split()[0] for line in text.splitlines() if "ld.global" in line]
    assert set(loads) == {"ld.global.cg.v4.b32"}
    assert len(loads) == CHUNK // (4 * 32 * module.WARPS)  # all of them before the first is used
