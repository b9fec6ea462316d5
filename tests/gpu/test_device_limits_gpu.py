"""Limits measured on a device: plausible, agreeing with the ceilings of benchmarks, kept and found again."""

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking.limits import (  # noqa: E402
    RATES,
    TIMERS,
    l2_read,
    measure_ceilings,
    measure_device,
)
from opscope.benchmarking.timer import CudaEventTimer  # noqa: E402
from opscope.hardware.devices import DataType, match_device  # noqa: E402
from opscope.hardware.limits import LimitEvidence, cache_measured, match_limits, published_rate, read_folder  # noqa: E402  # noqa: E402
from opscope.kernels.triton import load_triton  # noqa: E402
from opscope.model.benchmark import CacheState  # noqa: E402

pytestmark = pytest.mark.gpu

DEVICE = "cuda:0"


def rate(measured, name):
    return next(one for one in measured.rates if one.name == name)


def time_of(measured, name):
    return next(one for one in measured.times if one.name == name)


@pytest.fixture(scope="module")
def measured():
    return measure_device(DEVICE)


@pytest.fixture(scope="module")
def facts(measured):
    return {
        "compute_capability": measured.compute_capability,
        "sm_count": measured.sm_count,
        "memory_bytes": measured.memory_bytes,
    }


def test_it_is_of_this_device(measured):
    properties = torch.cuda.get_device_properties(0)
    assert measured.device == properties.name
    assert measured.memory_bytes == properties.total_memory
    assert measured.l2_bytes
    assert measured.driver


def test_the_table_of_devices_has_its_cache_and_multiprocessors(measured, facts):
    spec = match_device(measured.device, **facts).spec
    assert spec.sm_count == measured.sm_count
    assert spec.l2_bytes in (None, measured.l2_bytes)


def test_nothing_is_missing_that_the_device_has(measured):
    capability = torch.cuda.get_device_capability()
    needed = {"matrix_tf32": (8, 0), "matrix_bf16": (8, 0), "matrix_fp8": (8, 9), "matrix_int8": (7, 5)}
    expected = {name for name in RATES if capability >= needed.get(name, (7, 0))} | set(TIMERS)
    found = {one.name for one in measured.rates} | {one.name for one in measured.times}
    assert found == expected, measured.missing


def test_rates_are_plausible_against_the_data_sheet(measured, facts):
    spec = match_device(measured.device, **facts).spec
    shares = {}
    for one in measured.rates:
        published = published_rate(spec, one.name)
        if published is not None:
            shares[one.name] = one.per_s / published
    if spec.peaks:
        assert {"matrix_bf16", "matrix_fp32"} <= shares.keys()
    assert {name: share for name, share in shares.items() if not 0.4 <= share <= 1.05} == {}


def test_intervals_are_narrow_and_hold_the_median(measured):
    for rate in measured.rates:
        assert rate.low_per_s <= rate.per_s <= rate.high_per_s
        assert rate.sample_count >= 9
        # Products of milliseconds meet the power limit, so their clock moves.
        allowed = 0.2 if rate.unit == "operations" else 0.03
        assert (rate.high_per_s - rate.low_per_s) / rate.per_s < allowed, rate.name


def test_a_copy_agrees_with_the_ceiling_of_benchmarks(measured):
    (ceiling,) = measure_ceilings(DEVICE, ["copy_large"], CudaEventTimer(DEVICE, CacheState.COLD))
    copy = rate(measured, "copy")
    assert copy.how == ceiling.how
    assert copy.per_s == pytest.approx(ceiling.per_s, rel=0.03)


def test_products_agree_with_the_ceilings_of_benchmarks(measured):
    names = {"matrix_float32": "matrix_fp32", "matrix_tf32": "matrix_tf32"}
    timer = CudaEventTimer(DEVICE, CacheState.COLD)
    # TF32 meets the power limit: 368 and 409 TFLOP/s were seen minutes apart.
    for ceiling in measure_ceilings(DEVICE, list(names), timer):
        product = rate(measured, names[ceiling.name])
        assert product.per_s == pytest.approx(ceiling.per_s, rel=0.2), ceiling.name


def test_reading_alone_is_no_slower_than_copying(measured):
    assert rate(measured, "read").per_s > 0.97 * rate(measured, "copy").per_s


def test_the_cache_is_faster_than_memory(measured):
    assert rate(measured, "l2_read").per_s > 1.2 * rate(measured, "read").per_s


def timed_ns(call):
    """Median device time of a call that finds its data in L2."""
    timer = CudaEventTimer(DEVICE, CacheState.HOT)
    for _ in range(5):
        timer.measure(call)
    return sorted(timer.measure(call) for _ in range(15))[7]


def test_the_rate_of_l2_does_not_hang_on_the_buffer_and_is_not_that_of_l1():
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    rates = {}
    for size in (l2_bytes, l2_bytes // 2, 4 * 128 * 1024):  # the last one's buffer would fit into L1
        probe = l2_read(DEVICE, size)
        rates[size] = probe.amount / timed_ns(probe.make())
    whole, half, tiny = rates.values()
    assert half == pytest.approx(whole, rel=0.25)
    assert tiny < 1.5 * whole  # L1 reads four times as fast


def test_the_reading_kernel_reads_everything():
    streaming = load_triton("streaming")
    chunks = 1000
    source = torch.randn(chunks * streaming.CHUNK, device=DEVICE)
    sums = torch.empty(250, device=DEVICE)
    streaming.read_chunks(source, sums, reads=4, first_step=1, next_step=250)
    expected = source.double().view(4, 250, streaming.CHUNK).sum(dim=(0, 2))
    assert torch.allclose(sums.double(), expected, atol=0.01)
    streaming.read_chunks(source, sums, reads=chunks, first_step=97, next_step=1)
    assert torch.allclose(sums.double(), source.double().sum().expand(250), atol=1.0)


def test_starting_kernels_takes_microseconds(measured):
    launch, call, interval = (time_of(measured, name).median_ns for name in TIMERS)
    assert 1_000 < launch < 20_000
    assert launch < call < 50_000
    assert 300 < interval < 10_000


def test_clocks_were_read_under_load(measured):
    states = [rate.state for rate in measured.rates]
    if None in states:
        assert set(states) == {None}
        pytest.skip("NVML does not tell clocks here")
    slowest = min(state.sm_clock_mhz for state in states if state.sm_clock_mhz)
    assert slowest > 0.3 * (states[0].max_sm_clock_mhz or slowest)


def test_what_was_measured_is_found_again_and_wins(measured, facts, tmp_path):
    cache_measured(tmp_path, measured)
    ((found,), ignored) = read_folder(tmp_path)
    assert (found, ignored) == (measured, ())
    limits, _ = match_limits(measured.device, **facts, measured=found)
    assert limits.memory.evidence is LimitEvidence.MEASURED
    assert limits.peaks[DataType.FP32].evidence is LimitEvidence.MEASURED
    assert limits.launch_ns == time_of(measured, "launch").median_ns
    assert limits.smallest_kernel_ns == time_of(measured, "kernel_interval").median_ns


def test_a_device_with_little_room_is_measured_by_smaller_sizes():
    """Most memory taken by someone else: what does not fit gives way, and nothing fails."""
    before_bytes = torch.cuda.memory_allocated()
    free_bytes, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free_bytes - (3 << 30)), dtype=torch.uint8, device=DEVICE)
    try:
        measured = measure_device(DEVICE)
    finally:
        del held
        torch.cuda.empty_cache()
    assert "2048 MiB" not in rate(measured, "write").how
    assert rate(measured, "write").per_s > 0
    assert rate(measured, "matrix_bf16").per_s > 0
    # Libraries keep their workspaces; nothing else stays.
    assert torch.cuda.memory_allocated() - before_bytes < 64 << 20
