"""Copies that another memory, layout or type would spare."""

import pytest

from case_tables import cases
from fakes import H200, TraceBuilder
from opscope.advice import assess

from .conftest import MS, codes, host, told, trace

PINNED = "Memcpy HtoD (Pinned -> Device)"


def copies_to(host_memory, size=67_108_864, device_us=11_000):
    builder = TraceBuilder(deviceProperties=[H200]).step(1, 0, 30_000).operator("aten::copy_", 10, 20)
    name = f"Memcpy HtoD ({host_memory} -> Device)"
    builder.launch(15, name="cudaMemcpyAsync")
    builder.kernel(name, 50, device_us, category="gpu_memcpy", bytes=size)
    return builder.operator("aten::mm", 40, 20).launch(45).kernel("gemm", 12_000, 9_000)


def test_turning_channel_orders_is_told_with_its_convolutions(advise_on):
    builder = trace().step(1, 0, 20_000).operator("aten::cudnn_convolution", 10, 40)
    builder.launch(15).kernel(
        "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true, "
        "(cudnnKernelDataType_t)2>(cudnn::engines_precompiled::nchw2nhwc_params_t<float>, "
        "float const*, float*)",
        50,
        1_000,
    )
    builder.launch(25).kernel("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw", 1_100, 9_000)
    found = advise_on(builder, hosts=[host(10 * MS, 1 * MS)])
    told(found, "layout_conversion", "aten::cudnn_convolution", "channels_last", has_gain=True)


def copied_each_step(size, *, copy_us):
    """Three steps: a copy of pinned memory, a product of 500 µs behind it, and a wait for that."""
    builder = TraceBuilder(deviceProperties=[H200])
    for number in range(3):
        at = (540 + copy_us) * number
        builder.step(number, at, 540 + copy_us).operator("aten::copy_", at + 10, 20)
        builder.launch(at + 15, name="cudaMemcpyAsync")
        builder.kernel(PINNED, at + 25, copy_us, category="gpu_memcpy", bytes=size)
        builder.operator("aten::mm", at + 32, 8).launch(at + 34).kernel("gemm", at + 27 + copy_us, 500)
        builder.launch(at + 45, 490 + copy_us, name="cudaDeviceSynchronize")
    return builder


@pytest.mark.parametrize(("copy_us", "left_us"), [(400, 550), (700, 700)])
def test_copies_of_pinned_memory_gain_by_running_beside(load, copy_us, left_us):
    summary = assess(load(copied_each_step(int(copy_us * 40_000), copy_us=copy_us)))
    words = "1 copy per step from host to device (pinned memory)", "MB each at 40.0 GB/s"
    finding = told(summary.advice or (), "host_copies", *words, has_gain=True)
    # It lasts no less than the copies, nor than the rest.
    step = summary.typical_step
    assert step.step_ns - (finding.estimated_gain_ns_per_step or 0) == pytest.approx(left_us * 1000, rel=0.05)


def in_cuda(*, wait_us=0):
    """A program without PyTorch: six copies and kernels in turns, a wait, a kernel."""
    builder = TraceBuilder(deviceProperties=[H200])
    for number in range(6):
        builder.launch(5 * number, 2, name="cudaMemcpyAsync")
        builder.kernel(PINNED, 40 + 900 * number, 400, category="gpu_memcpy", bytes=20_000_000)
        builder.launch(5 * number + 2, 2).kernel("scale", 440 + 900 * number, 500, grid=[400, 1, 1])
    at = 6 * 900 + wait_us
    builder.launch(40, at, name="cudaStreamSynchronize")
    return builder.launch(at + 45, 2).kernel("scale", at + 50, 500, grid=[400, 1, 1])


def from_pageable_memory(times):
    builder, name = TraceBuilder(deviceProperties=[H200]), "Memcpy HtoD (Pageable -> Device)"
    for at in range(0, 6000 * times, 6000):
        builder.launch(at, 5000, name="cudaMemcpy")
        builder.kernel(name, at + 200, 4780, category="gpu_memcpy", bytes=20_000_000)
        builder.launch(at + 5100, 5).kernel("scale", at + 5110, 500)
    return builder


def taking_memory(rounds, *, gives_back):
    builder = TraceBuilder(deviceProperties=[H200])
    for at in range(0, 1000 * rounds, 1000):
        builder.launch(at, 400, name="cudaMalloc").launch(at + 410, 5).kernel("scale", at + 420, 300)
        if gives_back:
            builder.launch(at + 730, 200, name="cudaFree")
    return builder


@pytest.mark.parametrize(
    ("builder", "found"),
    [
        (in_cuda(), []),
        (in_cuda(wait_us=1000), ["host_sync"]),  # the device is idle meanwhile
        (from_pageable_memory(20), ["pageable_copy"]),  # and the wait is no change of its own
        (from_pageable_memory(2), []),  # to pin memory takes longer than to copy it twice
        (taking_memory(300, gives_back=True), ["cuda_malloc"]),
        (taking_memory(60, gives_back=False), ["start_up"]),  # what a program takes once
    ],
    ids=["copies", "a wait that costs", "waits for copies", "two waits", "memory again", "memory once"],
)
def test_what_a_program_in_cuda_waits_for(load, builder, found):
    assert codes(assess(load(builder)).advice or ()) == found


@cases("begins_us", "way", "said")
def test_pages_that_come_as_they_are_touched(load, begins_us, way, said):
    builder = TraceBuilder(deviceProperties=[H200]).launch(0, 2, name="cudaMemPrefetchAsync")
    builder.launch(10, 2).kernel("add(float*)", begins_us, 5000, grid=[400, 1, 1])
    for at in range(30, 4030, 40):
        name = f"Memcpy Unified {way} (Unknown -> Unknown)"
        builder.event("gpu_memcpy", name, at, 20, 9, {"device": 0, "bytes": 65_536})
    found = assess(load(builder)).advice or ()
    assert codes(found) == (["page_faults"] if said else [])
    assert not said or (said in found[0].message and "cudaMemPrefetchAsync" in (found[0].change or ""))


LEFT_ALONE = {
    "pinned": (copies_to("Pinned"), host(20 * MS, 12 * MS)),
    "small": (copies_to("Pageable", size=64, device_us=2), host(9 * MS, 2 * MS)),
}


@pytest.mark.parametrize(("content", "side"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_copies_left_alone(advise_on, content, side):
    assert codes(advise_on(content, hosts=[side])) == []
