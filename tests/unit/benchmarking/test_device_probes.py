"""Probes on the CPU: what they do once, how their work is counted, which sizes are tried."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking import device_probes  # noqa: E402
from opscope.benchmarking.device_probes import (  # noqa: E402
    CEILINGS,
    MIB,
    PRODUCTS,
    ceiling_obstacle,
    copy_attempts,
    fill_attempts,
    first_that_fits,
    kernel_read_attempts,
    l2_read_attempt,
    measure_ceilings,
    product_attempts,
    product_obstacle,
    sum_attempts,
)
from opscope.errors import InputError  # noqa: E402
from opscope.model.measurement import Clock  # noqa: E402


def made(attempts):
    (attempt,) = attempts
    return attempt.make()


def test_a_copy_counts_what_is_read_and_what_is_written():
    (attempt,) = copy_attempts("cpu", [2 * MIB], seed=0)
    probe = attempt.make()
    assert (attempt.needed_bytes, probe.amount) == (4 * MIB, 4 * MIB)
    copied = probe.call()
    assert copied.nbytes == 2 * MIB
    assert copied.std() > 0.9  # random: zeros would be faster


def test_a_sum_reads_the_buffer_once_and_a_fill_writes_it_once():
    read, write = made(sum_attempts("cpu", [MIB], seed=0)), made(fill_attempts("cpu", [MIB]))
    assert read.amount == write.amount == MIB
    assert read.call().shape == ()
    filled = write.call()
    assert filled.nbytes == MIB
    assert filled.unique().tolist() == [1.5]


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_right_and_counts_two_operations_for_each_multiplication(name):
    (attempt,) = product_attempts("cpu", name, [64], seed=0)
    probe = attempt.make()
    with probe.context():
        product = probe.call()
    assert (probe.amount, attempt.side, product.shape) == (2 * 64**3, 64, (64, 64))
    assert product.double().std() > 1
    assert "64 × 64" in probe.how


def test_int8_matrices_are_multiplied_as_integers():
    generator = torch.Generator().manual_seed(3)
    left, right = (
        torch.randint(-127, 128, (64, 64), dtype=torch.int8, generator=generator).long() for _ in range(2)
    )
    (attempt,) = product_attempts("cpu", "int8", [64], seed=3)
    assert torch.equal(attempt.make().call().long(), left @ right.t())


def test_fp8_matrices_are_multiplied_unscaled():
    normal = [torch.Generator().manual_seed(seed) for seed in (5, 6)]
    left, right = (
        torch.empty(64, 64, dtype=torch.bfloat16).normal_(generator=one).to(torch.float8_e4m3fn).float()
        for one in normal
    )
    (attempt,) = product_attempts("cpu", "fp8", [64], seed=5)
    assert torch.allclose(attempt.make().call().float(), left @ right.t(), rtol=0.02, atol=0.1)


@pytest.mark.parametrize(("name", "mode"), [("fp32", "ieee"), ("tf32", "tf32")])
def test_the_mode_of_float32_products_holds_while_one_is_measured(name, mode):
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    found = first_that_fits(
        product_attempts("cpu", name, [64], seed=0), "cpu", lambda _: matmul.fp32_precision
    )
    assert found[1] == mode
    assert matmul.fp32_precision == before


class TestSizes:
    def test_the_first_that_fits_into_memory(self, monkeypatch):
        monkeypatch.setattr(device_probes, "memory_limit_bytes", lambda _: 5 * MIB)
        probe, _ = first_that_fits(copy_attempts("cpu", [4 * MIB, 2 * MIB, MIB], 0), "cpu", lambda _: None)
        assert probe.amount == 4 * MIB

    def test_the_next_where_one_runs_out_of_memory(self):
        def measure(probe):
            if probe.amount == 8 * MIB:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return probe.amount

        found = first_that_fits(copy_attempts("cpu", [4 * MIB, 2 * MIB], 0), "cpu", measure)
        assert found[1] == 4 * MIB

    def test_none_where_none_fits(self, monkeypatch):
        monkeypatch.setattr(device_probes, "memory_limit_bytes", lambda _: 1)
        assert first_that_fits(fill_attempts("cpu", [MIB]), "cpu", lambda _: 0) is None

    def test_other_errors_are_not_about_the_size(self):
        def measure(probe):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        with pytest.raises(RuntimeError, match="illegal"):
            first_that_fits(fill_attempts("cpu", [MIB, 1024]), "cpu", measure)


class TestObstacles:
    def test_what_a_cpu_lacks(self):
        reasons = {name: product_obstacle("cpu", name) for name in PRODUCTS}
        assert reasons["tf32"] == "a CPU has no TF32"
        assert {name for name, reason in reasons.items() if reason is None} == {
            "fp64",
            "fp32",
            "fp16",
            "bf16",
        }

    @pytest.mark.parametrize(
        ("capability", "missing"),
        [
            ((7, 0), {"tf32", "bf16", "fp8", "int8"}),
            ((7, 5), {"tf32", "bf16", "fp8"}),
            ((8, 6), {"fp8"}),
            ((8, 9), set()),
            ((12, 0), set()),
        ],
    )
    def test_what_a_gpu_lacks(self, monkeypatch, capability, missing):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        assert {name for name in PRODUCTS if product_obstacle("cuda:0", name)} == missing


def test_the_buffer_in_l2_is_a_quarter_of_it_and_every_program_reads_all_of_it(monkeypatch):
    streaming = SimpleNamespace(CHUNK=2048)
    monkeypatch.setattr(device_probes, "load_triton", lambda _: streaming)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=10)
    )
    attempt = l2_read_attempt("cuda:0", 4 * MIB + 4096, seed=0)
    assert attempt.needed_bytes == MIB
    made = []
    monkeypatch.setattr(device_probes, "_random", lambda shape, *_: made.append(shape))
    monkeypatch.setattr(torch, "empty", lambda count, device: count)
    probe = attempt.make()
    assert made == [(MIB // 4,)]
    assert probe.amount == 80 * MIB
    assert "1 MiB of the 4 MiB L2 cache" in probe.how
    streaming.read_chunks = lambda source, sums, **how: how
    assert probe.call() == {"reads": 128, "first_step": 97, "next_step": 1}


def test_the_reading_kernel_gives_every_program_as_many_chunks(monkeypatch):
    streaming = SimpleNamespace(CHUNK=2048, read_chunks=lambda source, sums, **how: how)
    monkeypatch.setattr(device_probes, "load_triton", lambda _: streaming)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=3)
    )
    attempts = list(kernel_read_attempts("cuda:0", [MIB, 24 * 8192, 24 * 8192 - 1], seed=0))
    assert [attempt.needed_bytes for attempt in attempts] == [MIB, 24 * 8192]  # less is no chunk for each
    monkeypatch.setattr(device_probes, "_random", lambda shape, *_: shape)
    monkeypatch.setattr(torch, "empty", lambda count, device: count)
    probe = attempts[0].make()
    assert probe.call() == {"reads": 5, "first_step": 1, "next_step": 24}
    assert probe.amount == 5 * 24 * 8192 <= MIB


class SteadyTimer:
    """Calls once and reports the same duration every time."""

    clock = Clock.WALL
    resolution_ns = 1.0

    def __init__(self, duration_ns: int) -> None:
        self.duration_ns = duration_ns
        self.prepared: list[Callable[[], object]] = []
        self.samples = 0
        self.results: list[object] = []

    def prepare(self, calls):
        self.prepared.extend(calls)
        return calls

    def measure(self, fn):
        self.results.append(fn())
        self.samples += 1
        return self.duration_ns


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Sizes that take no time."""
    monkeypatch.setattr(device_probes, "_LARGE_COPY_BYTES", {"cpu": (8 << 20,)})
    monkeypatch.setattr(device_probes, "_LEAST_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(device_probes, "_MATRIX_SIDES", {"cpu": (64, 32)})
    monkeypatch.setattr(device_probes, "_SLOW_ON_CPU_SIDES", (16,))


def test_a_copy_counts_bytes_read_and_written():
    (copy,) = measure_ceilings("cpu", ["copy_large"], SteadyTimer(1_000_000))
    assert copy.per_s == pytest.approx(2 * (8 << 20) / 1e-3)
    assert (copy.name, copy.unit) == ("copy_large", "bytes")
    assert copy.how == "torch copy_ of 8 MiB float32 to another buffer, read + written"


@pytest.mark.parametrize(
    ("moved_mib", "buffer_mib"), [(None, 8), (8, 4), (12, 6), (0, 1)], ids=["unknown", "8", "12", "little"]
)
def test_a_copy_moves_as_much_as_the_call_it_is_compared_with(moved_mib, buffer_mib):
    copy_bytes = None if moved_mib is None else moved_mib << 20
    copy, large = measure_ceilings(
        "cpu", ["copy", "copy_large"], SteadyTimer(1_000_000), copy_bytes=copy_bytes
    )
    assert copy.how.startswith(f"torch copy_ of {buffer_mib} MiB")
    assert large.how.startswith("torch copy_ of 8 MiB")


def test_a_product_counts_additions_and_multiplications():
    (product,) = measure_ceilings("cpu", ["matrix_float32"], SteadyTimer(1_000))
    assert product.per_s == pytest.approx(2 * 64**3 / 1e-6)
    assert product.unit == "flop"
    assert product.how == "torch.mm of two 64 × 64 matrices of random float32"


@pytest.mark.parametrize(("duration_ns", "samples"), [(1, 33), (10_000_000, 33), (10**9, 8)])
def test_samples_follow_from_the_time_they_take(duration_ns, samples):
    timer = SteadyTimer(duration_ns)
    measure_ceilings("cpu", ["matrix_float32"], timer)
    assert timer.samples == samples
    assert len(timer.prepared) == 1


def test_data_are_random_by_seed_and_copied_whole():
    timer = SteadyTimer(1_000_000)
    measure_ceilings("cpu", ["copy"], timer, seed=3)
    first = timer.results[-1]
    assert first.std() > 0.9
    measure_ceilings("cpu", ["copy"], timer, seed=3)
    assert torch.equal(timer.results[-1], first)
    measure_ceilings("cpu", ["copy"], timer, seed=4)
    assert not torch.equal(timer.results[-1], first)


def test_a_mode_of_float32_products_holds_only_while_one_is_measured():
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    seen = []

    class Watching(SteadyTimer):
        def measure(self, fn):
            seen.append(matmul.fp32_precision)
            return super().measure(fn)

    measure_ceilings("cpu", ["matrix_float32"], Watching(10**9))
    assert set(seen) == {"ieee"}
    assert matmul.fp32_precision == before


def test_names_come_back_in_order_without_what_the_device_lacks():
    found = measure_ceilings("cpu", ["matrix_tf32", "matrix_bfloat16", "copy", "copy"], SteadyTimer(10**8))
    assert [one.name for one in found] == ["matrix_bfloat16", "copy"]
    assert ceiling_obstacle("cpu", "matrix_tf32") == "a CPU has no TF32"
    assert ceiling_obstacle("cpu", "copy") is None


def test_every_name_is_known_on_a_cpu():
    measured = {one.name for one in measure_ceilings("cpu", CEILINGS, SteadyTimer(10**8))}
    assert measured == set(CEILINGS) - {"matrix_tf32"}


def test_an_unknown_name():
    with pytest.raises(
        InputError, match=r"'matrix_int8' is not a ceiling. There are copy, copy_large, matrix_float32"
    ):
        measure_ceilings("cpu", ["matrix_int8"], SteadyTimer(1))


def test_sizes_that_do_not_fit_give_way_to_smaller_ones(monkeypatch):
    monkeypatch.setattr(device_probes, "memory_limit_bytes", lambda _: 3 * 64 * 64 * 4 - 1)
    (product,) = measure_ceilings("cpu", ["copy", "matrix_float32"], SteadyTimer(1_000))
    assert "32 × 32" in product.how


def test_a_size_that_runs_out_of_memory_gives_way_to_a_smaller_one():
    class Full(SteadyTimer):
        def measure(self, fn):
            if fn().shape[0] == 64:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return super().measure(fn)

    (product,) = measure_ceilings("cpu", ["matrix_float32"], Full(1_000))
    assert "32 × 32" in product.how


def test_an_old_device_has_no_matrix_units(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert ceiling_obstacle("cuda:0", "matrix_float16") is None
    assert ceiling_obstacle("cuda:0", "matrix_tf32") == (
        "matrix_tf32 needs compute capability 8.0, cuda:0 has 7.5"
    )
