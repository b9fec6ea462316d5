"""Measuring a device, by scripted timers on the CPU: what is kept, what is missing, which sizes are taken."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking import device_limits, device_probes  # noqa: E402
from opscope.benchmarking.device_limits import RATES, TIMES, measure_device  # noqa: E402
from opscope.benchmarking.timer import WallTimer  # noqa: E402
from opscope.errors import DependencyError, InputError, MeasurementError  # noqa: E402
from opscope.model.benchmark import DeviceState  # noqa: E402

MIB = 1 << 20


ON_A_CPU = {"copy", "read", "write", "matrix_fp64", "matrix_fp32", "matrix_fp16", "matrix_bf16"}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Sizes and samples that take no time."""
    monkeypatch.setattr(device_probes, "_LARGE_COPY_BYTES", {"cpu": (4 * MIB,)})
    monkeypatch.setattr(device_limits, "_BUFFER_BYTES", {"cpu": (2 * MIB, MIB)})
    monkeypatch.setattr(device_limits, "_SIDES", {"cpu": (64, 32)})
    monkeypatch.setattr(device_limits, "_MAX_SAMPLES", 9)


class ScriptedTimer(WallTimer):
    """Calls, and reports durations from a list, over and over."""

    def __init__(self, *durations_ns):
        super().__init__()
        self.durations_ns, self.taken = durations_ns, 0

    def measure(self, fn):
        fn()
        self.taken += 1
        return self.durations_ns[(self.taken - 1) % len(self.durations_ns)]


@pytest.fixture
def scripted(monkeypatch):
    """Makes every timer of a CPU this one."""

    def script(*durations_ns):
        timer = ScriptedTimer(*durations_ns)
        monkeypatch.setattr(device_limits, "WallTimer", lambda: timer)
        return timer

    return script


def test_everything_is_measured_or_missing_with_its_reason():
    measured = measure_device("cpu")
    assert {one.name for one in measured.rates} == ON_A_CPU
    assert measured.missing.keys() == {*RATES, *TIMES} - ON_A_CPU
    assert measured.missing["l2_read"] == "a CPU's caches are not measured"
    assert measured.missing["launch"] == "a CPU launches no kernels"
    assert measured.torch == torch.__version__
    assert (measured.compute_capability, measured.driver, measured.schema_version) == (None, None, 1)
    assert measured.duration_ns > 0
    for rate in measured.rates:
        assert 0 < rate.low_per_s <= rate.per_s <= rate.high_per_s


def test_a_rate_is_the_work_of_a_call_over_its_median_with_the_interval_turned_round(scripted):
    # Three warm-up calls, then nine samples: with nine, [x(2), x(8)] covers 96 %.
    scripted(1, 1, 1, 10, 20, 30, 40, 50, 60, 70, 80, 90)
    copy = measure_device("cpu").rate("copy")
    assert (copy.amount, copy.median_ns, copy.sample_count) == (8 * MIB, 50, 9)
    assert copy.per_s == pytest.approx(8 * MIB / 50e-9)
    assert copy.low_per_s == pytest.approx(8 * MIB / 80e-9)
    assert copy.high_per_s == pytest.approx(8 * MIB / 20e-9)
    assert copy.unit == "bytes"


def test_products_count_operations(scripted):
    scripted(1000)
    product = measure_device("cpu").rate("matrix_fp32")
    assert product.per_s == pytest.approx(2 * 64**3 / 1e-6)
    assert product.unit == "operations"


def test_a_product_that_would_take_too_long_gives_way_to_a_smaller_one(scripted, monkeypatch):
    monkeypatch.setattr(device_limits, "_LONGEST_CALL_NS", 7_999)
    scripted(1000)  # 32 takes 1 µs, so 64 would take 8
    assert "32 × 32" in measure_device("cpu").rate("matrix_fp32").how
    monkeypatch.setattr(device_limits, "_LONGEST_CALL_NS", 10)
    assert "32 × 32" in measure_device("cpu").rate("matrix_fp32").how


def test_the_faster_of_two_ways_is_the_rate(monkeypatch):
    ways = device_limits._ways

    def both(bench, name):
        yield from ways(bench, name)
        if name == "read":
            yield device_probes.copy_attempts("cpu", [4 * MIB], 0)

    monkeypatch.setattr(device_limits, "_ways", both)
    monkeypatch.setattr(device_limits, "_sample", lambda bench, probe, timer: ([1000] * 9, None))
    assert "copy_" in measure_device("cpu").rate("read").how


def test_what_fails_is_missing_and_the_rest_is_measured(monkeypatch):
    def broken(*_):
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED when calling cublasGemmEx\nmore")

    monkeypatch.setattr(device_limits, "product_attempts", broken)
    measured = measure_device("cpu")
    assert {one.name for one in measured.rates} == {"copy", "read", "write"}
    assert measured.missing["matrix_fp32"] == "CUBLAS_STATUS_NOT_SUPPORTED when calling cublasGemmEx"


def test_no_room(monkeypatch):
    monkeypatch.setattr(device_probes, "memory_limit_bytes", lambda _: MIB + 1)
    measured = measure_device("cpu")
    assert measured.missing["copy"] == "there is no room for it in a quarter of the free memory"
    assert "1 MiB" in measured.rate("write").how


def test_a_device_without_any_rate_is_an_error(monkeypatch):
    monkeypatch.setattr(device_probes, "memory_limit_bytes", lambda _: 0)
    with pytest.raises(MeasurementError, match="no rate of cpu could be measured: there is no room"):
        measure_device("cpu")


def test_a_lost_device_ends_the_measurement(monkeypatch):
    def broken(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(device_limits, "fill_attempts", broken)
    monkeypatch.setattr(device_limits, "lost_device", lambda _: "CUDA error: an illegal memory access")
    with pytest.raises(MeasurementError, match="cpu was lost while write was measured"):
        measure_device("cpu")


def test_clocks_are_read_while_the_call_runs(monkeypatch):
    read_at = []

    class Monitor:
        def read(self):
            read_at.append(len(calls))
            return DeviceState(1, sm_clock_mhz=1500, throttle_reasons=("sw_power_cap",))

    calls = []
    bench = device_limits._Bench("cuda:0", WallTimer(), WallTimer(), Monitor())
    probe = device_probes.Probe(lambda: calls.append(1), 1, "")
    monkeypatch.setattr(device_limits.require_torch().cuda, "device", lambda _: device_probes.nullcontext())
    monkeypatch.setattr(device_limits, "_LOAD_NS", 1000)
    state = device_limits._state_under_load(bench, probe, call_ns=100)
    assert state.throttle_reasons == ("sw_power_cap",)
    assert read_at == [11]


def test_no_such_device():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InputError, match="finds no CUDA device"):
        measure_device()


def test_an_amd_build_of_torch_is_refused(monkeypatch):
    monkeypatch.setattr(device_limits, "resolve_device", lambda _: "cuda:0")
    monkeypatch.setattr(torch.version, "hip", "6.2")
    with pytest.raises(InputError, match="built for AMD's"):
        measure_device("cuda")


class TestPretendedGpu:
    """What is asked of a GPU, with one that is only described."""

    @pytest.fixture
    def gpu(self, monkeypatch):
        properties = SimpleNamespace(
            name="NVIDIA Z900", major=9, minor=0, multi_processor_count=2, total_memory=10**10,
            L2_cache_size=4 * MIB,
        )  # fmt: skip
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
        monkeypatch.setattr(device_limits, "driver_version", lambda: "580.1")
        monkeypatch.setattr(device_limits, "lost_device", lambda _: None)
        return properties

    @pytest.fixture
    def bench(self, gpu):
        timer = WallTimer()
        return device_limits._Bench("cuda:0", timer, timer, device_limits.monitor_for("cpu")[0])

    def test_it_is_named_with_what_its_rates_may_depend_on(self, gpu):
        found = device_limits._identity("cuda:0")
        assert found["device"] == "NVIDIA Z900"
        assert (found["compute_capability"], found["sm_count"], found["l2_bytes"]) == ("9.0", 2, 4 * MIB)
        assert (found["driver"], found["torch"]) == ("580.1", torch.__version__)

    def test_without_triton_reading_is_measured_by_torch_alone(self, bench, monkeypatch):
        def missing(*_):
            raise DependencyError("Triton is not installed", hint="pip install 'opscope[triton]'")

        monkeypatch.setattr(device_limits, "kernel_read_attempts", missing)
        assert list(device_limits._kernel_ways(bench, [MIB])) == []
        assert bench.missing["read_by_kernel"].startswith("Triton is not installed")

    def test_a_kernel_that_does_not_compile_is_no_way_to_read(self, bench, monkeypatch):
        def broken():
            raise ValueError("no kernel image\nmore")

        attempt = device_probes.Attempt(1, lambda: device_probes.Probe(broken, 1, ""))
        monkeypatch.setattr(device_limits, "kernel_read_attempts", lambda *_: [attempt])
        monkeypatch.setattr(device_probes, "memory_limit_bytes", lambda _: 10)
        assert list(device_limits._kernel_ways(bench, [MIB])) == []
        assert bench.missing["read_by_kernel"] == "no kernel image"

    def test_a_kernel_that_works_is_a_second_way_to_read(self, bench, monkeypatch):
        attempt = device_probes.Attempt(1, lambda: device_probes.Probe(lambda: None, 1, ""))
        monkeypatch.setattr(device_limits, "kernel_read_attempts", lambda *_: [attempt])
        monkeypatch.setattr(device_probes, "memory_limit_bytes", lambda _: 10)
        assert list(device_limits._kernel_ways(bench, [MIB])) == [[attempt]]
        assert bench.missing == {}

    def test_a_cache_of_unknown_size_is_not_measured(self, bench, gpu):
        assert device_limits._known_l2_bytes(bench) == 4 * MIB
        del gpu.L2_cache_size
        with pytest.raises(MeasurementError, match="does not tell the size of the L2 cache"):
            device_limits._known_l2_bytes(bench)

    def test_types_it_lacks_are_missing_with_the_capability_they_need(self, bench, monkeypatch):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
        with pytest.raises(MeasurementError, match=r"needs compute capability 8\.9, cuda:0 has 8\.6"):
            device_limits._products(bench, "fp8")


@pytest.fixture
def pretended(monkeypatch):
    """A device that notes what is asked of it."""
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: events.append(f"kernel of {cycles}"))
    return events


def test_a_launch_is_a_batch_over_its_number_and_begins_with_an_idle_device(pretended, monkeypatch):
    clock = itertools.count(0, 500_000)  # each batch lasts 0.5 ms by this clock
    monkeypatch.setattr(device_limits.time, "perf_counter_ns", lambda: next(clock))
    found = device_limits.launch_time("cuda:0")
    assert (found.name, found.sample_count) == ("launch", 61)
    assert (found.low_ns, found.median_ns, found.high_ns) == (2500, 2500, 2500)
    batches = [list(group) for key, group in itertools.groupby(pretended, key="wait".__eq__) if not key]
    assert [len(batch) for batch in batches] == [200] * 66
    assert set(batches[0]) == {"kernel of 0"}


def test_batches_fit_into_the_queue_twice():
    # A hot sample queues the batch twice behind a kernel that waits.
    assert 2 * device_limits._BATCH < 1000


def test_an_operator_call_is_timed_the_same_way(pretended, monkeypatch):
    zeros = torch.zeros

    def zeros_on_the_cpu(*shape, device):
        return zeros(*shape)

    monkeypatch.setattr(torch, "zeros", zeros_on_the_cpu)
    found = device_limits.operator_call_time("cuda:0")
    assert 0 < found.low_ns <= found.median_ns <= found.high_ns
    assert "add_" in found.how


def test_the_interval_of_kernels_is_device_time_over_their_number(pretended, monkeypatch):
    class Timer:
        def __init__(self, device, cache_state):
            self.cache_state = cache_state

        def measure(self, fn):
            fn()
            return 300_000

    monkeypatch.setattr(device_limits, "CudaEventTimer", Timer)
    found = device_limits.kernel_interval("cuda:0")
    assert (found.name, found.median_ns, found.sample_count) == ("kernel_interval", 1500, 61)
    assert len(pretended) == 66 * 200
