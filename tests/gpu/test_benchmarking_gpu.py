"""What only a device can show: hidden launches, agreement with do_bench, memory, a lost device."""

import json
import math
import subprocess
import sys
import textwrap
import time

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking.problem import Implementation, Problem  # noqa: E402
from opscope.benchmarking.run import run_benchmark  # noqa: E402
from opscope.benchmarking.timer import CudaEventTimer  # noqa: E402
from opscope.capture.environment import collect_environment  # noqa: E402
from opscope.model import benchmark  # noqa: E402

pytestmark = pytest.mark.gpu

DEVICE = "cuda:0"


def naive_gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def gelu(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


def median_ns(timer, fn, samples=100):
    for _ in range(20):
        timer.measure(fn)
    return sorted(timer.measure(fn) for _ in range(samples))[samples // 2]


def problem_of(functions, *, reference, numel=1 << 24, **facts):
    def make_inputs(seed):
        generator = torch.Generator(device=DEVICE).manual_seed(seed)
        return (torch.randn(numel, generator=generator, device=DEVICE),)

    implementations = tuple(Implementation(name, lambda fn=fn: fn) for name, fn in functions.items())
    return Problem("gelu", DEVICE, make_inputs, implementations, reference, dtype="float32", **facts)


def run(problem, **changes):
    chosen = benchmark.BenchmarkOptions(**{"time_budget_s": 0.3, "ceilings": False, **changes})
    return run_benchmark(problem, chosen, environment=collect_environment())


@pytest.mark.parametrize("name", ["gelu", "softmax", "layer_norm", "copy", "gemm"])
def test_cold_event_times_agree_with_do_bench(name):
    from triton.testing import do_bench

    x = torch.randn(8192, 8192, device=DEVICE)
    square = x[:1024, :1024].contiguous()  # a long product is throttled while do_bench times it
    target = torch.empty_like(x)
    fn = {
        # Into the same memory in both: where a result lies moves its time by up to a tenth.
        "gelu": lambda: torch._C._nn.gelu(x, approximate="tanh", out=target),
        "softmax": lambda: torch.softmax(x, -1),
        "layer_norm": lambda: torch.nn.functional.layer_norm(x, (8192,)),
        "copy": lambda: target.copy_(x),
        "gemm": lambda: square @ square,
    }[name]
    timer = CudaEventTimer(DEVICE, benchmark.CacheState.COLD)
    # In turns, so that a clock that falls meanwhile hits both.
    turns = [
        (median_ns(timer, fn, 50), do_bench(fn, warmup=20, rep=100, return_mode="median") * 1e6)
        for _ in range(5)
    ]
    ours_ns, theirs_ns = (sorted(times)[2] for times in zip(*turns, strict=True))
    assert ours_ns == pytest.approx(theirs_ns, rel=0.02)


def test_the_hosts_launches_are_hidden():
    x = torch.randn(1024, device=DEVICE)
    timer = CudaEventTimer(DEVICE, benchmark.CacheState.HOT)

    def many_launches():
        for _ in range(20):
            naive_gelu(x)
            until_ns = time.perf_counter_ns() + 20_000  # some hosts launch as fast as the device works
            while time.perf_counter_ns() < until_ns:
                pass

    hidden_ns = median_ns(timer, many_launches)
    latency_ns = median_ns(CudaEventTimer(DEVICE), many_launches)
    assert hidden_ns < 0.7 * latency_ns


def test_a_call_that_waits_for_the_device_is_not_held_up_ever_longer(monkeypatch):
    x = torch.randn(1 << 20, device=DEVICE)
    timer, held, sleep = CudaEventTimer(DEVICE, benchmark.CacheState.COLD), [], torch.cuda._sleep
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: (held.append(cycles), sleep(cycles)))

    def waits():
        return x.sum().item()

    for _ in range(50):
        timer.measure(waits)
    # For 10 ms, at clocks of up to 2 GHz.
    assert held
    assert max(held) <= 10e-3 * 2.1e9


def test_a_hot_cache_is_faster_than_a_cold_one():
    x = torch.randn(1 << 20, device=DEVICE)
    target = torch.empty_like(x)
    cold_ns = median_ns(CudaEventTimer(DEVICE, benchmark.CacheState.COLD), lambda: target.copy_(x))
    hot_ns = median_ns(CudaEventTimer(DEVICE, benchmark.CacheState.HOT), lambda: target.copy_(x))
    assert hot_ns < cold_ns


def test_a_benchmark_finds_the_fused_kernel_faster():
    result = run(problem_of({"naive": naive_gelu, "torch": gelu}, reference="naive"))
    row = result.row("torch")
    assert result.clock is benchmark.Clock.CUDA_EVENT
    assert result.cache_state is benchmark.CacheState.COLD
    assert row.verdict is benchmark.Verdict.FASTER
    assert row.ratio < 0.5
    assert row.min_bytes == 2 * 4 << 24
    assert row.peak_memory_bytes == 4 << 24
    assert result.row("naive").peak_memory_bytes > row.peak_memory_bytes


def test_one_function_under_two_names_is_the_same():
    verdicts = [
        run(problem_of({"one": gelu, "two": gelu}, reference="one"), seed=seed).row("two").verdict
        for seed in range(5)
    ]
    assert verdicts.count(benchmark.Verdict.SAME) == 5


def test_short_kernels_are_repeated_and_launch_bound_ones_are_told():
    result = run(problem_of({"naive": naive_gelu, "torch": gelu}, reference="torch", numel=1024))
    assert result.row("torch").inner_repeats > 1
    assert result.row("torch").inner_repeats == result.row("naive").inner_repeats
    assert result.row("torch").inner_repeats <= result.row("torch").input_sets
    bound = [one.evidence["implementation"] for one in result.findings if one.code == "bench.launch_bound"]
    assert "naive" in bound


def test_an_implementation_out_of_memory_leaves_the_others_their_memory():
    def greedy(x):
        held = [torch.empty(1 << 30, device=DEVICE)]
        while True:
            held.append(torch.empty_like(held[0]))

    torch.cuda.empty_cache()
    before_bytes = torch.cuda.memory_reserved()
    result = run(problem_of({"torch": gelu, "greedy": greedy, "naive": naive_gelu}, reference="torch"))
    assert result.row("greedy").status is benchmark.Status.OUT_OF_MEMORY
    assert result.row("naive").verdict is benchmark.Verdict.SLOWER
    del result
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before_bytes + (1 << 30)


def test_the_devices_state_is_read():
    pytest.importorskip("pynvml")
    result = run(problem_of({"torch": gelu}, reference="torch"))
    assert result.device_state_before.sm_clock_mhz > 0
    assert result.device_state_after.temperature_c > 0


def test_rows_after_a_lost_device_fail_with_its_reason():
    script = textwrap.dedent("""
        import json, sys, torch
        from opscope.benchmarking.problem import Implementation, Problem
        from opscope.benchmarking.run import run_benchmark
        from opscope.capture.environment import collect_environment
        from opscope.model.benchmark import BenchmarkOptions

        def bad(x):
            return x[torch.full((4,), 1 << 40, device="cuda")]

        functions = {"torch": lambda x: x * 2, "bad": bad, "last": lambda x: x + x}
        problem = Problem(
            "double", "cuda:0", lambda seed: (torch.ones(1 << 20, device="cuda"),),
            tuple(Implementation(name, lambda fn=fn: fn) for name, fn in functions.items()), "torch",
        )
        options = BenchmarkOptions(time_budget_s=0.1, check=False)
        result = run_benchmark(problem, options, environment=collect_environment())
        json.dump([[row.name, row.status.value, row.reason] for row in result.rows], sys.stdout)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    assert [status for _, status, _ in rows] == ["failed"] * 3
    assert "'bad' ended this process's use of cuda:0" in rows[2][2]
