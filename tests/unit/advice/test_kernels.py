"""Chains of pointwise kernels, and launches that leave much of the device empty."""

import pytest

from case_tables import cases
from fakes import H200, TraceBuilder
from opscope.advice import assess

from .conftest import MS, call, codes, host, only, told, trace

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array"
    "<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
FP32_GEMM = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4"
    "_execute_kernel"
)


SIZE = [2048, 2048]


def chain_of(operators, *, kernel=ADD, device_us=20, product_us=20):
    """One step of so many rounds of the operators, a product between them; 10 µs apart on the host."""
    builder = trace()
    at, busy, times = 10.0, 20.0, 4
    builder.step(1, 0, 10 + 10.0 * times * (len(operators) + 1))
    for _ in range(times):
        for name, shapes in [*operators, ("aten::mm", [[64, 64], [64, 64]])]:
            types = ["float" if shape else "Scalar" for shape in shapes]
            builder.operator(name, at, 8, **{"Input Dims": shapes, "Input type": types})
            is_product = name == "aten::mm"
            launched, duration_us = (FP32_GEMM, product_us) if is_product else (kernel, device_us)
            builder.launch(at + 4).kernel(launched, max(busy, at + 6), duration_us)
            at += 10
            busy = max(busy, at) + duration_us
    return builder


GELU_BY_HAND = [
    ("aten::pow", [SIZE, []]),
    ("aten::mul", [SIZE, []]),
    ("aten::add", [SIZE, SIZE, []]),
    ("aten::tanh", [SIZE]),
]


FAST_HOST = {"hosts": [host(400_000, 50_000, launches=20)]}


def test_a_chain_keeps_its_passes_at_both_ends(advise_on, asked):
    """Four operators read 1 + 1 + 2 + 1 tensors and write 4; fused, 9 − 6 = 3 are left.

    The first of the four then takes a third of 80 µs in place of 20; the others go, on the host too.
    """
    words = ("aten::pow, aten::mul, aten::add and aten::tanh", "4,194,304 elements", "torch.compile(step)",
             "take 107 µs per step", "12 launches per step and 120 µs per step of host time go")  # fmt: skip
    found = advise_on(chain_of(GELU_BY_HAND), **FAST_HOST)
    finding = told(found, "unfused_pointwise", *words, has_gain=True)
    assert (finding.evidence["calls"], finding.evidence["device_ns"]) == (4, 4 * 80_000)
    ((scaled, (firsts, factor)), (gone, (others,)), (on_host, _)), *_ = asked
    assert (scaled, gone, on_host) == ("scale", "drop", "drop_host")
    assert (len(firsts), factor, len(others)) == (4, pytest.approx(80 / 3 / 20), 12)


def test_norms_of_batches_far_from_their_limit_are_compiled_too(advise_on):
    name = "aten::cudnn_batch_norm_backward"
    program = trace().step(1, 0, 400).operator(name, 10, 20).launch(15).kernel("bn_bw_1C11", 40, 300)
    norm = call(name, 300_000, fraction=0.1)
    found = told(
        advise_on(program, calls=[norm], **FAST_HOST), "unfused_pointwise",
        f"Batch norms ({name}) take", "270 µs per step more than the memory needs", has_gain=True,
    )  # fmt: skip
    assert found.is_to_try
    assert codes(advise_on(program, calls=[call(name, 300_000, fraction=0.99)], **FAST_HOST)) == []


@pytest.mark.parametrize("size", [SIZE, [4096, 2048]], ids=["same shapes", "other shapes"])
def test_what_compiling_brings_is_unknown_where_shapes_differ(advise_on, size):
    builder = chain_of(GELU_BY_HAND)
    shift = max(event["ts"] + event.get("dur", 0) for event in builder.events) + 10
    again = chain_of([(name, [size if shape else [] for shape in shapes]) for name, shapes in GELU_BY_HAND])
    for event in again.events:
        moved = {**event, "ts": event["ts"] + shift, "name": event["name"].replace("Step#1", "Step#2")}
        ids = {
            key: moved["args"][key] + 1000 for key in ("correlation", "External id") if key in moved["args"]
        }
        builder.events.append({**moved, "args": {**moved["args"], **ids}})
    finding = only(advise_on(builder, **FAST_HOST), "unfused_pointwise")
    assert bool(finding.applicability.blocked_by) is (size != SIZE)
    assert ("Shapes or kernels change" in finding.message) is (size != SIZE)


def test_chains_of_little_device_time_are_told_of_a_slow_host(advise_on):
    found = advise_on(chain_of(GELU_BY_HAND, product_us=3_000), **FAST_HOST)
    assert "unfused_pointwise" not in codes(found)
    slow = {"hosts": [host(400_000, 900_000, launches=20)]}
    found = advise_on(chain_of(GELU_BY_HAND, product_us=3_000), **slow)
    assert not only(found, "unfused_pointwise").is_gain_known


def test_no_chain_gets_shorter_than_the_shortest_kernel(advise_on):
    small = [(name, [[64, 64] if shape else [] for shape in shapes]) for name, shapes in GELU_BY_HAND]
    found = advise_on(chain_of(small, device_us=1), hosts=[host(20_000, 1_000, launches=20, step_ns=60_000)])
    # Four of 2 µs, where a third of 4 µs each would be less.
    told(found, "unfused_pointwise", "take 8.00 µs per step", has_gain=True)


def optimizing():
    return chain_of(GELU_BY_HAND).event("user_annotation", "Optimizer.step#SGD.step", 1, 2000, 1, {})


NO_CHAINS = {
    "one": chain_of([("aten::add", [SIZE, SIZE, []])]),
    "one name": chain_of([("aten::add_", [SIZE, SIZE, []]), ("aten::add_", [SIZE, SIZE, []])]),
    "other sizes": chain_of([("aten::add", [SIZE, SIZE, []]), ("aten::mul", [[7, 7], []])]),
    "sizes unknown": chain_of([("aten::add", [[], []]), ("aten::mul", [[], []])]),
    "not pointwise": chain_of(GELU_BY_HAND, kernel=FP32_GEMM),
    "of an optimizer": optimizing(),
}


@pytest.mark.parametrize("content", NO_CHAINS.values(), ids=NO_CHAINS)
def test_what_is_no_chain(advise_on, content):
    assert "unfused_pointwise" not in codes(advise_on(content, **FAST_HOST))


@cases("kernel", "grid", "threads", "said")
def test_a_kernel_of_ones_own_on_few_threads(load, kernel, grid, threads, said):
    builder = TraceBuilder(deviceProperties=[H200]).launch(0, 5)
    builder.kernel(kernel, 10, 5000, grid=[grid, 1, 1], block=[threads, 1, 1])
    found = assess(load(builder)).advice or ()
    assert codes(found) == ([] if said is None else ["small_launch"])
    assert said is None or said in f"{found[0].message} {found[0].change}"


def test_a_loop_that_sums_over_tensors_gets_one_tensor_of_all(advise_on):
    program = trace().step(1, 0, 5_000).operator("aten::mm", 10, 20).launch(15).kernel("gemm", 50, 2_000)
    for place in range(240):
        name = ("aten::pow", "aten::sum")[place % 2]
        at = 105 + 10 * place
        program.operator(name, at, 8, **{"Input Dims": [[64, 1 + place // 2 % 20]]}).launch(at + 2)
        program.kernel("kernel", 2_100 + 6 * place, 5)
    found = advise_on(program, hosts=[host(2.5 * MS, 1 * MS, launches=241)])
    told(found, "per_tensor_loop", "torch.cat([one.flatten()", "weight_decay", has_gain=True)


@cases("shapes", "launches", "phase", "is_told")
def test_a_loop_over_tensors_that_is_not_the_optimizers_is_told(advise_on, shapes, launches, phase, is_told):
    program = trace().step(1, 0, 5_000).operator("aten::mm", 10, 20).launch(15).kernel("gemm", 50, 2_000)
    if phase is not None:
        program.operator(phase, 100, 10 * launches + 10)
    for place in range(launches):
        at, name = 105 + 10 * place, ("aten::mul", "aten::copy_")[place % 2]
        program.operator(name, at, 8, **{"Input Dims": [[64, 1 + place % shapes]]}).launch(at + 2)
        program.kernel("kernel", 2_100 + 6 * place, 5)
    found = advise_on(program, hosts=[host(2.5 * MS, 1 * MS, launches=launches + 1)])
    assert ("per_tensor_loop" in codes(found)) is is_told
    if is_told:
        words = (
            "aten::copy_ and aten::mul run 120 times per step in loops over tensors of 20 shapes",
            "torch._foreach_copy_, torch._foreach_mul\n# of lists",
        )
        assert not told(found, "per_tensor_loop", *words, has_gain=True).is_gain_known
