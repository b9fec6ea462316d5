"""Is advice worth what it says? Makes the changes that it proposes and times the steps. Needs a CUDA device.

    python benchmarks/gpu_advice.py --output FILE.json [--limits MEASURED.json] [--sections changes graphs …]
    python benchmarks/gpu_advice.py --output FILE.json --device cpu    # a rehearsal: small, no advice

Sections:
    changes  BERT, each size recorded with opscope.profile and advised on; then TF32 is allowed, or attention
             computed in one kernel, and both programs are timed without a profiler, in turns.
    graphs   The same for a launch-bound BERT and its replay as one CUDA graph.
    healthy  Large bf16 products, and a compiled perceptron of them: no advice is right.
    rates    Products and attention of many sizes by CUDA events, beside what advice expects of them.

A step's time is that of a loop without synchronization, divided by its steps. What was expected of an H200
before the first run: estimates for TF32 and one attention kernel within 30 % of what a rerun gains, wherever
that is 2 % of a step or more; products within 20 % and attention within 50 % of their expected times; CUDA
graphs within 30 %.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_setup import Step, as_it_is, captured, environment_facts, in_turns, parser_of, tf32, write

SECTIONS = ("changes", "graphs", "healthy", "rates")
ACTIVE = 5
ROUNDS = 7
LEAST_S = 0.15  # of steps in one sample
TOLERANCE = 0.3
LEAST_GAIN = 0.02  # of a step: rules say nothing of less


@dataclass(frozen=True)
class Setup:
    """Where and with which limits to run."""

    device: str
    work_dir: Path
    limits: Path | None = None

    @property
    def is_cuda(self) -> bool:
        """Whether there is anything to advise on."""
        return self.device.startswith("cuda")


@dataclass(frozen=True)
class Configuration:
    """A BERT to advise on; `code` is the advice to follow."""

    code: str
    batch: int
    length: int
    dtype: str = "float32"
    attention: str = "sdpa"
    train: bool = False

    @property
    def title(self) -> str:
        """All of it in one line."""
        kind = " train" if self.train else ""
        return f"bert {self.dtype} {self.attention} bs{self.batch} seq{self.length}{kind}"


CONFIGURATIONS = (
    Configuration("advice.tf32_off", 8, 128),
    Configuration("advice.tf32_off", 32, 128),
    Configuration("advice.tf32_off", 8, 128, train=True),
    Configuration("advice.tf32_off", 8, 128, attention="eager"),
    Configuration("advice.eager_attention", 8, 128, attention="eager"),
    Configuration("advice.eager_attention", 8, 512, attention="eager"),
    Configuration("advice.eager_attention", 32, 512, "bfloat16", "eager"),
    Configuration("advice.eager_attention", 8, 128, "bfloat16", "eager"),
)
REHEARSAL = (
    Configuration("advice.tf32_off", 1, 16),
    Configuration("advice.eager_attention", 1, 16, attention="eager"),
)


def measure_changes(setup: Setup) -> list[dict[str, Any]]:
    """Estimate and measured gain of each configuration's change."""
    results = []
    for configuration in CONFIGURATIONS if setup.is_cuda else REHEARSAL:
        with reported(results, {"configuration": configuration.title, "code": configuration.code}) as result:
            before = bert_step(setup, configuration)
            if configuration.code == "advice.tf32_off":
                after, in_change = before, tf32
            else:
                after, in_change = bert_step(setup, configuration, attention="sdpa"), as_it_is
            result.update(follow(setup, configuration.code, before, after, in_change))
    return results


def measure_graphs(setup: Setup) -> list[dict[str, Any]]:
    """A launch-bound BERT, and its replay as one CUDA graph."""
    results: list[dict[str, Any]] = []
    if not setup.is_cuda:
        return results
    for dtype, batch in (("bfloat16", 1), ("bfloat16", 8)):
        configuration = Configuration("advice.launch_bound", batch, 128, dtype)
        with reported(results, {"configuration": configuration.title, "code": configuration.code}) as result:
            before = bert_step(setup, configuration)
            result.update(follow(setup, configuration.code, before, captured(before), as_it_is))
    return results


def measure_healthy(setup: Setup) -> list[dict[str, Any]]:
    """Programs that are doing well, and what advice says of them."""
    results: list[dict[str, Any]] = []
    programs = {"products": product_chain, "compiled perceptron": compiled_perceptron}
    for title, program in programs.items():
        with reported(results, {"program": title}) as result:
            step = program(setup)
            summary, findings = advised(setup, step)
            result["findings"] = [described(finding) for finding in findings]
            result["busy_fraction"] = summary.busy_fraction
            result["within"] = not findings
            print(f"  {title:24} {len(findings)} findings {[finding.code for finding in findings]}")
    return results


def measure_rates(setup: Setup) -> list[dict[str, Any]]:
    """Measured and expected device times of products and attention."""
    results: list[dict[str, Any]] = []
    if not setup.is_cuda:
        return results
    rates = device_rates(setup)
    for title, expected_ns, call in (*product_calls(rates), *attention_calls(rates)):
        with reported(results, {"call": title}) as result:
            measured_ns = event_time_ns(call)
            ratio = None if expected_ns is None else expected_ns / measured_ns
            result |= {
                "measured_ns": measured_ns,
                "expected_ns": expected_ns,
                "expected_over_measured": ratio,
            }
            print(f"  {title:44} {measured_ns / 1e3:9.2f} µs, expected {ratio or float('nan'):5.2f} of it")
    return results


def follow(
    setup: Setup, code: str, before: Step, after: Step, in_change: Callable[[], Any]
) -> dict[str, Any]:
    """What advice promises for a change, and what the change brings."""
    summary, findings = advised(setup, before)
    with in_change():
        after_summary, _ = advised(setup, after)
    rounds, least_s = (ROUNDS, LEAST_S) if setup.is_cuda else (3, 0.02)
    samples = in_turns(before, after, in_change, rounds=rounds, least_s=least_s)
    before_ns, after_ns = map(statistics.median, samples)
    finding = next((one for one in findings if one.code == code), None)
    estimate_ns = None if finding is None else finding.estimated_gain_ns_per_step
    gain_ns = before_ns - after_ns
    ratio = None if estimate_ns is None or gain_ns <= 0 else estimate_ns / gain_ns
    within = as_expected(estimate_ns, gain_ns, before_ns) if setup.is_cuda else None
    print(
        f"  {code.removeprefix('advice.'):16} {before_ns / 1e6:8.3f} ms to {after_ns / 1e6:8.3f}:"
        f" gain {gain_ns / 1e6:7.3f},"
        f" estimated {'–' if estimate_ns is None else format(estimate_ns / 1e6, '7.3f')}"
        f" ratio {'–' if ratio is None else format(ratio, '.2f')}"
    )
    return {
        "before_ns": before_ns,
        "after_ns": after_ns,
        "gain_ns": gain_ns,
        "estimated_gain_ns": estimate_ns,
        "ratio": ratio,
        "within": within,
        "gain_basis": None if finding is None else finding.gain_basis,
        "ranked": [one.code for one in findings],
        "recorded_before": sides(summary),
        "recorded_after": sides(after_summary),
    }


def as_expected(estimate_ns: float | None, gain_ns: float, before_ns: float) -> bool:
    """Whether an estimate is near a gain that can be told from noise, or as small as one that cannot."""
    least_ns = LEAST_GAIN * before_ns
    if gain_ns < least_ns:
        return (estimate_ns or 0.0) <= 2 * least_ns
    return estimate_ns is not None and abs(estimate_ns / gain_ns - 1) <= TOLERANCE


def advised(setup: Setup, step: Step) -> tuple[Any, tuple[Any, ...]]:
    """The Summary of a recording of some steps, and the advice on it."""
    import opscope
    from opscope.advice import assess

    for _ in range(3):
        step()
    folder = tempfile.mkdtemp(dir=setup.work_dir)
    with opscope.profile(folder, warmup=1, active=ACTIVE, with_stack=False) as profiler:
        for _ in range(1 + ACTIVE):
            step()
            profiler.step()
    with profiler.session as session:
        summary = assess(session, ceilings_file=setup.limits)
    return summary, summary.advice or ()


def sides(summary: Any) -> dict[str, Any]:
    """The two sides of a recorded step, as advice takes them."""
    return {
        host.trace_id: {
            "device_busy_ns": host.device_busy_ns,
            "host_ns": host.launch_path_ns - (host.recorder_ns or 0.0),
            "recorded_host_ns": host.launch_path_ns,
            "recorder_ns": host.recorder_ns,
            "launches": host.launches,
            "recorded_step_ns": host.step_ns,
        }
        for host in summary.timeline.host
    }


def bert_step(setup: Setup, configuration: Configuration, *, attention: str | None = None) -> Step:
    """A step of BERT-base; of a small one on a CPU."""
    from opscope.workloads.spec import WorkloadOptions, resolve

    size: dict[str, Any] = {} if setup.is_cuda else {"layers": 2, "hidden": 64}
    options = WorkloadOptions(
        dtype=configuration.dtype,
        device=setup.device,
        attn_implementation=attention or configuration.attention,
        train=configuration.train,
        **size,
    )
    return resolve("bert", options).build(configuration.batch, configuration.length).step


def product_chain(setup: Setup) -> Step:
    """Large bf16 products, one after the other."""
    import torch

    size, count = (8192, 10) if setup.is_cuda else (64, 3)
    weights = [
        torch.randn(size, size, device=setup.device, dtype=torch.bfloat16) / size**0.5 for _ in range(count)
    ]
    x = torch.randn(size, size, device=setup.device, dtype=torch.bfloat16)

    def step() -> object:
        y = x
        with torch.inference_mode():
            for weight in weights:
                y = y @ weight
        return y

    return step


def compiled_perceptron(setup: Setup) -> Step:
    """A compiled perceptron of large layers; on a CPU as it is, for compiling takes longer than the rest."""
    import torch
    from torch import nn

    size, rows = (8192, 16384) if setup.is_cuda else (64, 32)
    layers = [layer for _ in range(4) for layer in (nn.Linear(size, size), nn.GELU(approximate="tanh"))]
    model = nn.Sequential(*layers).to(setup.device, torch.bfloat16).eval()
    x = torch.randn(rows, size, device=setup.device, dtype=torch.bfloat16)
    run = torch.compile(model) if setup.is_cuda else model

    def step() -> object:
        with torch.inference_mode():
            return run(x)

    return step


def device_rates(setup: Setup) -> Any:
    """The rates that advice expects of this device."""
    import torch

    from opscope.advice.kernel_times import Rates
    from opscope.hardware.limits import match_limits
    from opscope.hardware.measured import read_measured

    facts = torch.cuda.get_device_properties(setup.device)
    limits = match_limits(
        facts.name,
        compute_capability=f"{facts.major}.{facts.minor}",
        sm_count=facts.multi_processor_count,
        memory_bytes=facts.total_memory,
        measured=None if setup.limits is None else read_measured(setup.limits),
    ).limits
    return Rates(limits, facts.multi_processor_count)


def product_calls(rates: Any) -> Iterator[tuple[str, float | None, Step]]:
    """Products of BERT's layers and others, in TF32 and bf16."""
    import torch

    from opscope.advice.kernel_times import product_ns
    from opscope.hardware.devices import DataType
    from opscope.operators.products import MatrixProduct

    sizes = [(1024, 768, 768), (1024, 3072, 768), (1024, 768, 3072), (4096, 768, 768), (4096, 3072, 768)]
    sizes += [(512, 512, 512), (8192, 8192, 8192), (2048, 2048, 2048)]
    for data_type, dtype in ((DataType.TF32, torch.float32), (DataType.BF16, torch.bfloat16)):
        for m, n, k in sizes:
            left = torch.randn(m, k, device="cuda", dtype=dtype)
            right = torch.randn(n, k, device="cuda", dtype=dtype).t()
            yield (
                f"{data_type} product {m}×{k} by {k}×{n}",
                product_ns(MatrixProduct(1, m, n, k), data_type, rates),
                tf32_call(lambda left=left, right=right: left @ right),
            )


def attention_calls(rates: Any) -> Iterator[tuple[str, float | None, Step]]:
    """Attention of BERT's and larger sizes, float32 and bf16, forward and backward."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from opscope.advice.kernel_times import AttentionWork, attention_ns
    from opscope.hardware.devices import DataType

    for data_type, dtype in ((DataType.FP32, torch.float32), (DataType.BF16, torch.bfloat16)):
        for batch, heads, length, size in (
            (8, 12, 128, 64),
            (8, 12, 512, 64),
            (32, 12, 512, 64),
            (4, 16, 2048, 128),
        ):
            shape = (batch, heads, length, size)
            q, k, v = (torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
            out = scaled_dot_product_attention(q, k, v)
            grad = torch.randn_like(out)
            sizes = AttentionWork(batch * heads, length, length, size)
            title = f"{data_type} attention {batch}×{heads} heads of {length}×{size}"
            yield f"{title} forward", attention_ns(sizes, data_type, rates), forward_call(q, k, v)
            backward = AttentionWork(batch * heads, length, length, size, is_backward=True)
            yield (
                f"{title} backward",
                attention_ns(backward, data_type, rates),
                backward_call(out, (q, k, v), grad),
            )


def forward_call(q: Any, k: Any, v: Any) -> Step:
    """Attention without a graph."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    def call() -> object:
        with torch.no_grad():
            return scaled_dot_product_attention(q, k, v)

    return call


def backward_call(out: Any, inputs: tuple[Any, ...], grad: Any) -> Step:
    """The gradient of one attention, again and again."""
    import torch

    return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)


def tf32_call(call: Step) -> Step:
    """The call with TF32 allowed."""

    def run() -> object:
        with tf32():
            return call()

    return run


def event_time_ns(call: Step) -> float:
    """Device time of one call, by CUDA events around enough of them that the host does not matter."""
    import torch

    for _ in range(3):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    count, samples = 20, []
    for _ in range(7):
        torch.cuda.synchronize()
        torch.cuda._sleep(8_000_000)  # the host launches ahead while the device waits
        begin.record()
        for _ in range(count):
            call()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) * 1e6 / count)
    return statistics.median(samples)


def described(finding: Any) -> dict[str, Any]:
    """A finding in JSON types."""
    return {
        "code": finding.code,
        "message": finding.message,
        "estimated_gain_ns_per_step": finding.estimated_gain_ns_per_step,
        "gain_basis": finding.gain_basis,
    }


@contextmanager
def reported(results: list[dict[str, Any]], facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A result that is kept whatever happens; a failure is part of it."""
    result: dict[str, Any] = dict(facts)
    results.append(result)
    began = time.perf_counter()
    try:
        yield result
    except Exception as error:  # noqa: BLE001 - the other results are worth having
        traceback.print_exc()
        result["error"] = f"{type(error).__name__}: {error}"
        result["within"] = False
    result["took_s"] = round(time.perf_counter() - began, 2)


MEASURE: Mapping[str, Callable[[Setup], list[dict[str, Any]]]] = {
    "changes": measure_changes,
    "graphs": measure_graphs,
    "healthy": measure_healthy,
    "rates": measure_rates,
}


def main(argv: list[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limits", type=Path, help="a measurement of `opscope devices --measure --save`")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args(argv)
    document: dict[str, Any] = {"environment": environment_facts(), "tolerance": TOLERANCE}
    with tempfile.TemporaryDirectory() as scratch:
        setup = Setup(options.device, Path(scratch), options.limits)
        for section in options.sections:
            print(section)
            began = time.perf_counter()
            document[section] = MEASURE[section](setup)
            print(f"  took {time.perf_counter() - began:.1f} s")
            write(options.output, document)
    missed = [one for section in options.sections for one in document[section] if one.get("within") is False]
    print(f"{len(missed)} outside of what was expected")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
