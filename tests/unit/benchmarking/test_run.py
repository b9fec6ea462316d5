from itertools import count

import pytest

from case_tables import cases
from fakes import FakeTimer
from opscope.benchmarking import run as engine
from opscope.benchmarking.problem import Implementation, Problem
from opscope.benchmarking.run import run_benchmark
from opscope.errors import DependencyError, InputError, MeasurementError
from opscope.model.benchmark import (
    BenchmarkOptions,
    CallProfile,
    Ceiling,
    KernelUse,
    Status,
)
from opscope.model.sidecar import Environment

torch = pytest.importorskip("torch")

ENVIRONMENT = Environment(python="3.11", platform="Linux", opscope="0.1")
COPY = Ceiling("copy", 1e9, "bytes", "a fake")
PROFILE = CallProfile(1, 2.0, 900.0, (KernelUse("k", "k", "kernel", 2.0, 900.0),))


def options(**changes):
    defaults = {"warmup_s": 0.0, "min_samples": 8, "max_samples": 20, "precision": 0.0}
    return BenchmarkOptions(**{**defaults, **changes})


def double(x):
    return x * 2


def make_inputs(seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(256, generator=generator),)


def implementation(name, fn=double, **facts):
    return Implementation(name, lambda: fn, **facts)


def problem_of(*implementations, reference="reference", **facts):
    return Problem("double", "cpu", make_inputs, implementations, reference, dtype="float32", **facts)


def uneven(base=10_000):
    return (base + number * 7919 % 101 for number in count())


def run(problem, chosen=None, **given):
    given.setdefault("timer", FakeTimer(uneven()))
    given.setdefault("measure_ceilings", lambda device, names, timer, **options: (COPY,))
    return run_benchmark(problem, chosen or options(), environment=ENVIRONMENT, **given)


def codes(result):
    return [finding.code for finding in result.findings]


def fails_with(error):
    def fn(x):
        raise error

    return fn


def fails_at_call(number, error):
    """A right function that raises from its `number`-th call on."""
    calls = count(1)

    def fn(x):
        if next(calls) >= number:
            raise error
        return x * 2

    return fn


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (DependencyError("nvcc is missing", hint="Install the CUDA toolkit"), Status.UNAVAILABLE, "Install"),
        (MeasurementError("error: expected ';'"), Status.UNAVAILABLE, "expected ';'"),
        (ValueError("no such thing"), Status.FAILED, "ValueError while it was built: no such thing"),
        (MemoryError(), Status.OUT_OF_MEMORY, "out of memory while it was built"),
    ],
)
def test_what_building_raises_becomes_the_rows_status(error, status, words):
    def build():
        raise error

    result = run(problem_of(implementation("reference"), Implementation("bad", build)))
    row = result.row("bad")
    assert row.status is status
    assert words in row.reason
    assert row.samples_ns == ()
    assert result.row("reference").median_ns is not None
    assert f"bench.{status}" in codes(result)


# Calls of one implementation: first, check, three of warm-up, memory, call time, samples.
@pytest.mark.parametrize("call", [1, 2, 3, 6, 10])
@pytest.mark.parametrize("error", [RuntimeError("unsupported"), MemoryError()])
def test_an_error_at_any_call_ends_that_implementation_alone(call, error):
    result = run(problem_of(implementation("reference"), implementation("bad", fails_at_call(call, error))))
    row = result.row("bad")
    expected = Status.OUT_OF_MEMORY if isinstance(error, MemoryError) else Status.FAILED
    assert row.status is expected
    assert row.median_ns is None
    assert row.verdict is None
    assert len(result.row("reference").samples_ns) == 20
    assert result.complete


def test_samples_of_an_implementation_that_fails_later_are_kept_without_figures():
    remaining = []

    def fails_in_the_sixth_round(x):
        if remaining and not remaining.pop():
            raise ValueError("tired")
        return x * 2

    def measure_ceilings(device, names, timer, **options):
        remaining.extend([0, 1, 1, 1, 1, 1])
        return ()

    result = run(
        problem_of(implementation("reference"), implementation("bad", fails_in_the_sixth_round)),
        measure_ceilings=measure_ceilings,
    )
    row = result.row("bad")
    assert (row.status, row.reason) == (Status.FAILED, "ValueError while it was sampled: tired")
    assert len(row.samples_ns) == 5
    assert (row.median_ns, row.interval_ns, row.ratio) == (None, None, None)


def test_an_interpreted_implementation_is_checked_on_small_inputs_alone():
    sizes = []
    interpreted = implementation("triton", lambda x: sizes.append(x.numel()) or x * 2, is_interpreted=True)
    small = {"small_inputs": lambda seed: (torch.ones(4),)}
    row = run(problem_of(implementation("reference"), interpreted, **small)).row("triton")
    assert (row.status, row.samples_ns, row.first_call_ns, {*sizes}) == (Status.CHECKED, (), None, {4})


def test_where_checks_are_off_nothing_is_compared_and_what_is_interpreted_left_out():
    interpreted, wrong = implementation("triton", is_interpreted=True), implementation("wrong", lambda x: x)
    result = run(problem_of(implementation("reference"), interpreted, wrong), options(check=False))
    assert result.row("triton").status is Status.UNAVAILABLE
    assert (result.row("wrong").status, result.row("wrong").check) == (Status.OK, None)


def test_without_the_reference_or_anything_to_compare_with_rows_say_so():
    result = run(
        problem_of(
            implementation("reference", fails_with(ValueError("broken"))),
            implementation("other"),
            expected=lambda x: x * 2,
        )
    )
    row = result.row("other")
    assert row.status is Status.OK
    assert row.median_ns is not None
    assert (row.ratio, row.verdict) == (None, None)
    assert "bench.no_reference" in codes(result)
    assert "bench.unchecked" not in codes(result)
    result = run(problem_of(implementation("other"), reference="missing"))
    assert result.row("other").status is Status.OK
    assert result.row("other").check is None
    assert {"bench.unchecked", "bench.no_reference"} <= set(codes(result))


def test_profiles_join_their_rows():
    calls = []

    def inspect(call):
        calls.append(call())
        return PROFILE

    result = run(problem_of(implementation("reference")), inspect=inspect)
    row = result.row("reference")
    assert (row.profile, row.kernels_launched, row.device_ns) == (PROFILE, 2.0, 900.0)
    assert len(calls) == 1
    assert run(problem_of(implementation("reference")), options(profile=False)).rows[0].profile is None


def test_a_profiler_or_ceilings_that_fail_cost_no_more_than_they_tell():
    fails = fails_with(RuntimeError("another profiler is running"))
    result = run(problem_of(implementation("reference")), inspect=fails)
    assert (result.rows[0].status, result.rows[0].profile) == (Status.OK, None)
    (finding,) = [one for one in result.findings if one.code == "bench.not_profiled"]
    assert "another profiler is running" in finding.message

    def measure_ceilings(device, names, timer, **options):
        raise RuntimeError("no room")

    result = run(problem_of(implementation("reference")), measure_ceilings=measure_ceilings)
    assert result.rows[0].median_ns is not None
    assert result.rows[0].ceiling_fraction is None
    assert "bench.no_ceilings" in codes(result)


def test_the_ceiling_that_binds_has_the_longer_floor_and_an_implementation_one_of_its_own():
    asked = []

    def measure_ceilings(device, names, timer, **options):
        asked.extend(names)
        return (COPY, *(Ceiling(name, 1e9, "flop", "a fake") for name in names if "copy" not in name))

    other = implementation("other", matrix_ceiling="matrix_tf32")
    result = run(
        problem_of(implementation("reference"), other, flop_count=5000, matrix_ceiling="matrix_float32"),
        measure_ceilings=measure_ceilings,
    )
    row = result.rows[0]
    assert asked == ["copy", "copy_large", "matrix_float32", "matrix_tf32"]
    assert [row.ceiling for row in result.rows] == ["matrix_float32", "matrix_tf32"]
    assert row.ceiling_fraction == pytest.approx(5000 / row.median_ns)
    assert row.flop_per_s == pytest.approx(5000 / row.median_ns * 1e9)


def interrupt_at_sample(number):
    class Interrupting(FakeTimer):
        def measure(self, fn):
            if self.calls == number:
                raise KeyboardInterrupt
            return super().measure(fn)

    return Interrupting(uneven())


WARMUPS = 2 * 3  # measurements before the rounds


def test_an_interruption_while_preparing_keeps_nothing_unfinished():
    result = run(
        problem_of(implementation("reference"), implementation("other"), implementation("last")),
        timer=interrupt_at_sample(4),
    )
    assert not result.complete
    assert [row.status for row in result.rows] == [Status.INTERRUPTED] * 3
    assert "stopped by the user" in result.row("reference").reason
    assert result.row("reference").first_call_ns is not None
    assert "bench.interrupted" in codes(result)


@cases("sample", "taken", "status", "reason")
def test_an_interruption_in_the_rounds_keeps_figures_and_says_so(sample, taken, status, reason):
    seen = []
    result = run(
        problem_of(implementation("reference"), implementation("other")),
        timer=interrupt_at_sample(WARMUPS + sample),
        on_change=seen.append,
    )
    row = result.row("other")
    assert not result.complete
    assert [len(row.samples_ns) for row in result.rows] == [taken, taken]
    assert (row.status, row.reason) == (status, reason)
    assert row.median_ns is not None
    assert (row.verdict is None) == (status == Status.INTERRUPTED)
    assert seen[-1] == result


def test_after_a_lost_device_every_row_says_so(monkeypatch):
    is_lost = []

    def crash(x):
        is_lost.append(True)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(
        engine, "lost_device", lambda device: "CUDA error: illegal access" if is_lost else None
    )
    result = run(
        problem_of(implementation("reference"), implementation("bad", crash), implementation("last"))
    )
    assert [row.status for row in result.rows] == [Status.FAILED] * 3
    assert "'bad' ended this process's use of cpu" in result.row("last").reason
    assert "'bad' ended this process's use of cpu" in result.row("reference").reason
    assert codes(result)[0] == "bench.device_lost"


@cases("changes")
def test_contradicting_options_are_refused(changes):
    with pytest.raises(InputError):
        run(problem_of(implementation("reference")), options(**changes))
