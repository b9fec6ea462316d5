"""Is a recorded window what the program does without the profiler? Needs a CUDA device.

    python benchmarks/gpu_capture.py --output FILE.json [--work-dir DIR]

Records BERT at batch sizes 1 and 8 (launch-bound on a large GPU) and at a size where the GPU is the limit,
loads each trace as a Session and states, per configuration: the laws of `Session.check`,
activities from before the window, steps, kernels of every step, kernel time per step against the latency by
CUDA events without the profiler, and that latency again after a recording.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from gpu_setup import environment_facts, parser_of, write

CONFIGURATIONS = (
    (1, 128, "float32"),
    (8, 128, "float32"),
    (64, 512, "float32"),
    (64, 512, "bfloat16"),
)
STEPS = 5


def measure_configuration(work_dir: Path, batch_size: int, seq_len: int, dtype: str) -> dict[str, Any]:
    """One configuration: latency, recording, latency again, and what the Session says."""
    import opscope
    from opscope.benchmarking.timer import latency_measure
    from opscope.capture.sweep import configuration_of, run_configuration
    from opscope.model.measurement import LatencyOptions
    from opscope.workloads.spec import WorkloadOptions, resolve

    spec = resolve("bert", WorkloadOptions(dtype=dtype, device="cuda"))
    measure = latency_measure(LatencyOptions(warmup=10, min_samples=30, max_samples=300, time_budget_s=3.0))
    run = run_configuration(
        spec,
        configuration_of(spec, batch_size, seq_len),
        work_dir,
        trace_name=f"bert_{dtype}_bs{batch_size}_seq{seq_len}",
        warmup=2,
        active=STEPS,
        measure=measure,
        overwrite=True,
    )
    workload = spec.build(batch_size, seq_len)
    after = measure(workload.step, workload.device)
    assert run.latency is not None
    with opscope.load(run.trace_path) as session:
        steps = session.records("SELECT step, device_ns, kernel_count FROM steps ORDER BY start_ns")
        kernel_ns = session.scalar(
            "SELECT sum(duration_ns)::BIGINT FROM device_activities WHERE kind = 'kernel'"
        )
        unattributed = session.query(
            "SELECT attribution, count(*), sum(duration_ns)::BIGINT FROM device_activities "
            "WHERE operator_id IS NULL GROUP BY 1 ORDER BY 1"
        )
        checks = {check.name: check.holds for check in session.check()}
        busy_fraction = opscope.summarize(session).busy_fraction
    per_step_ns = kernel_ns / len(steps)
    return {
        "configuration": {"workload": "bert", "batch_size": batch_size, "seq_len": seq_len, "dtype": dtype},
        "checks": checks,
        "unattributed": unattributed,
        "steps": steps,
        "kernels_equal_in_every_step": len({step["kernel_count"] for step in steps}) == 1,
        "busy_fraction": busy_fraction,
        "kernel_time_ns_per_step": per_step_ns,
        "latency_before_recording_ns": {"median": run.latency.median_ns, "samples": run.latency.samples_ns},
        "latency_after_recording_ns": {"median": after.median_ns, "samples": after.samples_ns},
        "kernel_time_over_latency": per_step_ns / run.latency.median_ns,
        "latency_after_over_before": after.median_ns / run.latency.median_ns,
    }


def main() -> int:
    """Measure every configuration, print a table, write the results."""
    parser = parser_of(__doc__)
    parser.add_argument("--work-dir", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work_dir = arguments.work_dir or Path(scratch)
        results = [measure_configuration(work_dir, *configuration) for configuration in CONFIGURATIONS]
    write(arguments.output, {"environment": environment_facts(), "results": results})
    for result in results:
        configuration = result["configuration"]
        print(
            f"bs {configuration['batch_size']:3} seq {configuration['seq_len']} {configuration['dtype']:9}"
            f" kernel time/step {result['kernel_time_ns_per_step'] / 1e6:8.3f} ms"
            f" latency {result['latency_before_recording_ns']['median'] / 1e6:8.3f} ms"
            f" (after {result['latency_after_recording_ns']['median'] / 1e6:8.3f})"
            f" ratio {result['kernel_time_over_latency']:.4f} busy {result['busy_fraction']:.3f}"
            f" steps {len(result['steps'])} unattributed {result['unattributed']}"
            f" checks {'hold' if all(result['checks'].values()) else result['checks']}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
