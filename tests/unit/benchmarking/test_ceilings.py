"""Ceilings by a scripted timer: which sizes are taken, what is skipped, how rates follow from samples."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking import device_probes  # noqa: E402
from opscope.benchmarking import device_probes as ceilings  # noqa: E402
from opscope.benchmarking.device_probes import CEILINGS, ceiling_obstacle, measure_ceilings  # noqa: E402
from opscope.errors import InputError  # noqa: E402
from opscope.model.measurement import Clock  # noqa: E402


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
    monkeypatch.setattr(ceilings, "_LARGE_COPY_BYTES", {"cpu": (8 << 20,)})
    monkeypatch.setattr(ceilings, "_LEAST_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(ceilings, "_MATRIX_SIDES", {"cpu": (64, 32)})
    monkeypatch.setattr(ceilings, "_SLOW_ON_CPU_SIDES", (16,))


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
