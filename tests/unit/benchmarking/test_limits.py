"""Measuring a device, by scripted timers on the CPU: what is kept, what is missing, which sizes are taken."""

from contextlib import nullcontext
from itertools import cycle
from types import SimpleNamespace

import pytest

from case_tables import cases
from fakes import FakeTimer

torch = pytest.importorskip("torch")

from opscope.benchmarking import limits  # noqa: E402
from opscope.benchmarking.timer import WallTimer  # noqa: E402
from opscope.errors import DependencyError, InputError, MeasurementError  # noqa: E402
from opscope.model.benchmark import DeviceState  # noqa: E402

ON_A_CPU = {"copy", "read", "write", "matrix_fp64", "matrix_fp32", "matrix_fp16", "matrix_bf16"}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Sizes and samples that take no time."""
    monkeypatch.setattr(limits, "BUFFER_BYTES", {"cpu": (4 * limits.MIB, limits.MIB), "cuda": (limits.MIB,)})
    monkeypatch.setattr(limits, "SIDES", {"cpu": (64, 32), "cuda": (64,)})
    monkeypatch.setattr(limits, "_LEAST_COPY_BYTES", limits.MIB // 2)
    monkeypatch.setattr(limits, "_MAX_SAMPLES", 9)


def scripted_timer(*durations_ns):
    """Reports durations from a list, over and over."""
    return FakeTimer(cycle(durations_ns))


@pytest.fixture
def scripted(monkeypatch):
    """Makes every timer of a CPU this one."""

    def script(*durations_ns):
        timer = scripted_timer(*durations_ns)
        monkeypatch.setattr(limits, "WallTimer", lambda: timer)
        return timer

    return script


def rate(measured, name):
    return next(one for one in measured.rates if one.name == name)


def test_everything_is_measured_or_missing_with_its_reason():
    measured = limits.measure_device("cpu")
    assert {one.name for one in measured.rates} == ON_A_CPU
    assert measured.missing.keys() == {*limits.RATES, *limits.TIMERS} - ON_A_CPU
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
    copy = rate(limits.measure_device("cpu"), "copy")
    assert (copy.amount, copy.median_ns, copy.sample_count) == (8 * limits.MIB, 50, 9)
    assert copy.per_s == pytest.approx(8 * limits.MIB / 50e-9)
    assert copy.low_per_s == pytest.approx(8 * limits.MIB / 80e-9)
    assert copy.high_per_s == pytest.approx(8 * limits.MIB / 20e-9)
    assert copy.unit == "bytes"


def test_what_fails_is_missing_and_the_rest_is_measured(monkeypatch):
    def broken(*_):
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED when calling cublasGemmEx\nmore")

    monkeypatch.setattr(limits, "products", broken)
    measured = limits.measure_device("cpu")
    assert {one.name for one in measured.rates} == {"copy", "read", "write"}
    assert measured.missing["matrix_fp32"] == "CUBLAS_STATUS_NOT_SUPPORTED when calling cublasGemmEx"


@pytest.fixture
def full(monkeypatch):
    """A GPU of which so many bytes are free."""
    return lambda free_bytes: monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_bytes, 0))


def test_a_probe_is_of_the_largest_size_that_fits_into_a_quarter_of_the_free_memory(full):
    probes = limits.probes_of("write", "cpu", WallTimer())
    full(16 * limits.MIB)
    assert limits.fitting(probes, "cuda:0").amount == 4 * limits.MIB
    full(16 * limits.MIB - 1)
    assert limits.fitting(probes, "cuda:0").amount == limits.MIB
    full(0)
    with pytest.raises(MeasurementError, match="there is no room for it in a quarter of the free memory"):
        limits.measure_rate("write", "cuda:0", WallTimer(), lambda: None)


def test_a_device_without_any_rate_is_an_error(monkeypatch):
    monkeypatch.setattr(limits, "probes_of", lambda *_: [])
    with pytest.raises(MeasurementError, match="no rate of cpu could be measured: there is no room"):
        limits.measure_device("cpu")


def test_a_lost_device_ends_the_measurement(monkeypatch):
    def broken(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(limits, "_fill", broken)
    monkeypatch.setattr(limits, "lost_device", lambda _: "CUDA error: an illegal memory access")
    with pytest.raises(MeasurementError, match="cpu was lost while write was measured"):
        limits.measure_device("cpu")


def test_clocks_are_read_while_the_call_runs(monkeypatch):
    read_at, calls = [], []

    def read_state():
        read_at.append(len(calls))
        return DeviceState(1, sm_clock_mhz=1500, throttle_reasons=("sw_power_cap",))

    probe = limits.Probe(0, 1, "", lambda: lambda: calls.append(1))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(limits, "probes_of", lambda *_: [probe])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1, 1))
    monkeypatch.setattr(limits, "_LOAD_NS", 1000)
    monkeypatch.setattr(limits, "take_samples", lambda *_, **__: [100])
    rate = limits.measure_rate("copy", "cuda:0", WallTimer(), read_state)
    assert rate.state.throttle_reasons == ("sw_power_cap",)
    assert (rate.sample_count, rate.median_ns, read_at) == (1, 100, [11])


def test_an_amd_build_of_torch_is_refused(monkeypatch):
    monkeypatch.setattr(limits, "resolve_device", lambda _: "cuda:0")
    monkeypatch.setattr(torch.version, "hip", "6.2")
    with pytest.raises(InputError, match="built for AMD's"):
        limits.measure_device("cuda")


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that is only described."""
    properties = SimpleNamespace(
        name="NVIDIA Z900", major=9, minor=0, multi_processor_count=2, total_memory=10**10,
        L2_cache_size=4 * limits.MIB,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(limits, "driver_version", lambda: "580.1")
    monkeypatch.setattr(limits, "lost_device", lambda _: None)
    return properties


def test_a_gpu_is_described_and_what_it_lacks_is_said(gpu, monkeypatch):
    def measured_rate(name, device, timer, read_state):
        if name == "read":
            raise DependencyError("Triton is not installed", hint="pip install 'opscope[triton]'")
        return SimpleNamespace(name=name)

    monkeypatch.setattr(limits, "measure_rate", measured_rate)
    monkeypatch.setattr(limits, "resolve_device", lambda _: "cuda:0")
    monkeypatch.setattr(limits, "state_reader", lambda _: (lambda: None, None))
    monkeypatch.setattr(limits, "CudaEventTimer", lambda *_: WallTimer())
    monkeypatch.setattr(torch.version, "hip", None)
    measured = limits.measure_device("cuda")
    assert measured.device == "NVIDIA Z900"
    assert (measured.compute_capability, measured.sm_count, measured.l2_bytes) == ("9.0", 2, 4 * limits.MIB)
    assert (measured.driver, measured.torch) == ("580.1", torch.__version__)
    assert {one.name for one in measured.rates} == {*limits.RATES} - {"read"}
    assert "Triton is not installed" in measured.missing["read"]


@pytest.fixture
def pretended(monkeypatch):
    """A device that notes what is asked of it."""
    events = []
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: events.append(f"kernel of {cycles}"))
    return events


def test_the_interval_of_kernels_is_device_time_over_their_number(pretended, monkeypatch):
    class Timer:
        def __init__(self, device, cache_state):
            self.cache_state = cache_state

        def measure(self, fn):
            fn()
            return 300_000

    monkeypatch.setattr(limits, "CudaEventTimer", Timer)
    found = limits.measure_start("kernel_interval", "cuda:0")
    assert (found.name, found.median_ns, found.sample_count) == ("kernel_interval", 1500, 61)
    assert len(pretended) == 66 * 200 + 1


def probe_of(name):
    """The probe of the smallest size."""
    return limits.probes_of(name, "cpu", WallTimer())[-1]


def test_probes_count_what_is_read_written_and_multiplied():
    probe = probe_of("copy")
    assert (probe.needed_bytes, probe.amount) == (2 * limits.MIB, 2 * limits.MIB)
    copied = probe.make()()
    assert copied.nbytes == limits.MIB
    assert copied.std() > 0.9  # random: zeros would be faster
    read, write = probe_of("read"), probe_of("write")
    assert read.amount == write.amount == limits.MIB
    assert read.make()().shape == ()
    filled = write.make()()
    assert filled.nbytes == limits.MIB
    assert filled.unique().tolist() == [1.5]
    probe = probe_of("matrix_bf16")
    assert (probe.amount, probe.needed_bytes) == (2 * 32**3, 32 * 32 * 8)
    assert "32 × 32" in probe.how


def test_the_mode_of_float32_products_holds_while_one_is_measured(monkeypatch):
    matmul, modes = torch.backends.cuda.matmul, []
    before = matmul.fp32_precision
    monkeypatch.setattr(limits, "take_samples", lambda *_, **__: modes.append(matmul.fp32_precision) or [1])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    limits.measure_ceilings("cpu", ["matrix_float32", "matrix_bfloat16"], scripted_timer(1))
    assert modes == ["ieee", before]
    with limits.float32_products("tf32"):
        assert matmul.fp32_precision == "tf32"
    assert matmul.fp32_precision == before


def obstacles(device):
    """Why a device has no product of a type, by the type."""
    found = {}
    for name in limits.PRODUCTS:
        try:
            limits.products(name, device, scripted_timer(1))
        except MeasurementError as error:
            found[name] = str(error)
    return found


@cases("capability", "missing")
def test_what_a_gpu_lacks(monkeypatch, full, capability, missing):
    full(10**9)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: tuple(capability))
    monkeypatch.setattr(
        limits,
        "PRODUCTS",
        {name: one._replace(make=lambda *_: list) for name, one in limits.PRODUCTS.items()},
    )
    reasons = obstacles("cuda:0")
    assert reasons.keys() == set(missing)
    for name, reason in reasons.items():
        needed = ".".join(map(str, limits.PRODUCTS[name].capability))
        assert reason == f"needs compute capability {needed}, cuda:0 has {capability[0]}.{capability[1]}"


@pytest.fixture
def streaming(monkeypatch):
    """The reading kernel on a described GPU of 10 multiprocessors; it tells how it was called."""
    kernel = SimpleNamespace(CHUNK=2048, read_chunks=lambda source, sums, **how: (source, how))
    device = SimpleNamespace(multi_processor_count=10, L2_cache_size=4 * limits.MIB + 4096)
    monkeypatch.setattr(limits, "load_triton", lambda _: kernel)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setattr(limits, "_random", lambda shape, *_: shape)
    monkeypatch.setattr(torch, "empty", lambda count, device: count)


def test_the_buffer_in_l2_is_a_quarter_of_it_and_every_program_reads_all_of_it(streaming):
    (probe,) = limits.probes_of("l2_read", "cuda:0", WallTimer())
    assert (probe.needed_bytes, probe.amount) == (limits.MIB, 80 * limits.MIB)
    assert "1 MiB of the 4 MiB L2 cache" in probe.how
    assert probe.make()() == ((limits.MIB // 4,), {"reads": 128, "first_step": 97, "next_step": 1})


def test_the_reading_kernel_gives_every_program_as_many_chunks(streaming, monkeypatch):
    round_bytes = 80 * 8192
    sizes = [2 * round_bytes + 5, round_bytes, round_bytes - 1]  # the last is no chunk for each
    monkeypatch.setattr(limits, "BUFFER_BYTES", {"cuda": sizes})
    probes = limits.probes_of("read", "cuda:0", WallTimer())
    assert [probe.needed_bytes for probe in probes] == [2 * round_bytes, round_bytes]
    assert probes[0].make()() == ((round_bytes // 2,), {"reads": 2, "first_step": 1, "next_step": 80})
    assert probes[0].amount == 2 * round_bytes


@cases("moved_mib", "buffer_mib")
def test_a_copy_moves_as_much_as_the_call_it_is_compared_with(moved_mib, buffer_mib):
    copy_bytes = None if moved_mib is None else moved_mib << 20
    copy, large = limits.measure_ceilings(
        "cpu", ["copy", "copy_large"], scripted_timer(1_000_000), copy_bytes=copy_bytes
    )
    assert copy.how.startswith(f"torch copy_ of {buffer_mib} MiB")
    assert large.how.startswith("torch copy_ of 4 MiB")


def test_a_product_that_would_take_too_long_gives_way_to_a_smaller_one(scripted, monkeypatch):
    monkeypatch.setattr(limits, "_LONGEST_CALL_NS", 7_999)
    scripted(1000)  # 32 takes 1 µs, so 64 would take 8
    assert "32 × 32" in rate(limits.measure_device("cpu"), "matrix_fp32").how
    monkeypatch.setattr(limits, "_LONGEST_CALL_NS", 10)
    assert "32 × 32" in rate(limits.measure_device("cpu"), "matrix_fp32").how
