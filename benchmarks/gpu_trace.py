"""What recording a CUDA program through `opscope trace` costs, and whether it is right, as JSON.

    python benchmarks/gpu_trace.py --output benchmarks/results/h200_trace.json

Needs nvcc and a GPU; takes less than a minute. A program of 100,001 launches runs bare, recorded, and
recorded without unified memory, in turn; its own clock around the last 100,000 and their wait is compared.
The guide's add program says by CUDA events what its kernel took. Expected of an H200: 1.2 to 1.3 times the
bare time, no record lost, the kernel within 5 %.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_setup import parser_of, write
from opscope.analysis.nsys_reports import report_tables
from opscope.api import load
from opscope.cli.trace import _places
from opscope.cupti.library import build_library, find_compiler, find_cupti, trace_environment
from opscope.cupti.recording import ChunkKind, CuptiRecording, read_recording
from opscope.cupti.trace_file import first_moment_ns, write_trace
from opscope.errors import OpscopeError
from opscope.hardware.driver import driver_cuda_version, find_cuda_tool
from opscope.report.tables import stats_json

LAUNCHES = r"""
#include <chrono>
#include <cstdio>
#include <cstdlib>
__global__ void empty() {}
int main(int, char **arguments) {
  int count = atoi(arguments[1]);
  empty<<<1, 32>>>();
  cudaDeviceSynchronize();
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; i++) empty<<<1, 32>>>();
  cudaDeviceSynchronize();
  auto spent = std::chrono::steady_clock::now() - start;
  printf("%lld\n", (long long)std::chrono::nanoseconds(spent).count());
}
"""
ADD = r"""
#include <cstdio>
__global__ void add(int n, float *x, float *y) {
  for (int i = 0; i < n; i++) y[i] = x[i] + y[i];
}
int main() {
  int n = 1 << 20;
  float *x, *y;
  cudaMallocManaged(&x, n * sizeof(float));
  cudaMallocManaged(&y, n * sizeof(float));
  for (int i = 0; i < n; i++) { x[i] = 1.0f; y[i] = 2.0f; }
  cudaEvent_t before, after;
  cudaEventCreate(&before);
  cudaEventCreate(&after);
  cudaEventRecord(before);
  add<<<1, 1>>>(n, x, y);
  cudaEventRecord(after);
  cudaDeviceSynchronize();
  float milliseconds = 0, sum = 0;
  cudaEventElapsedTime(&milliseconds, before, after);
  for (int i = 0; i < n; i++) sum += y[i];
  printf("%.0f %.0f\n", milliseconds * 1e6, sum / n);
  cudaFree(x);
  cudaFree(y);
}
"""
LIMIT_S = 60
MOST_RATIO = 1.35
MOST_DIFFERENCE = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--launches", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(argv)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-trace-") as folder:
        try:
            bench = Bench(Path(folder))
            document = {
                "cupti": {"api_version": bench.cupti.api_version, "library": str(bench.cupti.library)},
                "driver_cuda_version": driver_cuda_version(),
                "recorder_build_s": bench.build_s,
                "launches": bench.launches(options.launches, options.repeats),
                "add": bench.add(),
            }
        except OpscopeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    document["duration_s"] = time.monotonic() - started
    write(options.output, document)
    return show(document)


class Bench:
    """Programs and the recorder, built in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cupti = find_cupti(*_places(), driver_cuda_version())
        compiler = find_compiler(os.environ.get("CC"), os.environ.get("PATH"))
        before = time.monotonic()
        self.library = build_library(self.cupti, compiler, folder / "recorder")
        self.build_s = time.monotonic() - before
        self.runs = 0

    def launches(self, count: int, repeats: int) -> dict[str, Any]:
        """The program of launches, each way in turn."""
        program = self.build("launches", LAUNCHES)
        samples: dict[str, list[int]] = {"bare": [], "recorded": [], "recorded_without_unified_memory": []}
        walls: dict[str, list[float]] = {name: [] for name in samples}
        self.run_bare(program, count)  # the machine's first start of CUDA
        recordings = []
        for _ in range(repeats):
            for name, found in samples.items():
                before = time.monotonic()
                if name == "bare":
                    words = self.run_bare(program, count)
                else:
                    words, recording = self.run(program, count, unified=name == "recorded")
                    recordings.append(recording)
                walls[name].append(time.monotonic() - before)
                found.append(int(words[0]))
        return {
            "count": count,
            "samples_ns": samples,
            "process_s": walls,
            "ratio": median_ratio(samples["recorded"], samples["bare"]),
            "ratio_without_unified_memory": median_ratio(
                samples["recorded_without_unified_memory"], samples["bare"]
            ),
            "kernels": [len(one.of(ChunkKind.KERNELS)) for one in recordings],
            "calls": [len(one.of(ChunkKind.RUNTIME_CALLS)) for one in recordings],
            "dropped": [one.outcome.dropped_count + one.outcome.lost_count for one in recordings],
            "record_file_bytes": recordings[-1].path.stat().st_size,
            **self.convert(recordings[-1]),
        }

    def convert(self, recording: CuptiRecording) -> dict[str, Any]:
        """How long records take to become a trace, and the trace a Session."""
        path, before = self.folder / "trace.json", time.monotonic()
        write_trace(path, read_recording(recording.path), first_moment_ns(recording))
        written = time.monotonic()
        with load(path) as session:
            kernels = session.scalar("SELECT count(*) FROM device_activities WHERE kind = 'kernel'")
        return {
            "convert_s": written - before,
            "load_s": time.monotonic() - written,
            "trace_bytes": path.stat().st_size,
            "loaded_kernels": kernels,
        }

    def add(self) -> dict[str, Any]:
        """The guide's program: its kernel, its calls, its copies."""
        program = self.build("add", ADD)
        words, recording = self.run(program)
        path = self.folder / "add.json"
        written = write_trace(path, recording, first_moment_ns(recording))
        with load(path) as session:
            reports = stats_json(
                report_tables(session, ["cuda_gpu_kern_sum", "cuda_api_sum", "cuda_gpu_mem_size_sum"])
            )
        (kernel,) = recording.of(ChunkKind.KERNELS)
        recorded_ns, events_ns = int(kernel["end_ns"] - kernel["start_ns"]), int(words[0])
        return {
            "kernel_ns": recorded_ns,
            "events_ns": events_ns,
            "bare_events_ns": int(self.run_bare(program)[0]),
            "difference": recorded_ns / events_ns - 1,
            "unified_memory": recording.outcome.unified.name,
            "unified_refusal": recording.outcome.unified_refusal,
            "findings": [one.message for one in written.findings],
            "reports": reports,
        }

    def build(self, name: str, source: str) -> Path:
        """Compile a program."""
        nvcc = find_cuda_tool("nvcc")
        if nvcc is None:
            raise OpscopeError("nvcc was not found")
        (self.folder / f"{name}.cu").write_text(source)
        command = [nvcc, "-O1", "-arch=native", "-o", name, f"{name}.cu"]
        subprocess.run(command, check=True, cwd=self.folder, timeout=LIMIT_S)
        return self.folder / name

    def run_bare(self, program: Path, *arguments: object) -> list[str]:
        """What a program prints that is not recorded."""
        return self.words(program, arguments, dict(os.environ))

    def run(
        self, program: Path, *arguments: object, unified: bool = True
    ) -> tuple[list[str], CuptiRecording]:
        """What a recorded program prints, and what was recorded."""
        self.runs += 1
        records = self.folder / f"records{self.runs}"
        records.mkdir()
        environment = trace_environment(
            os.environ,
            library=self.library,
            cupti=self.cupti.library,
            folder=records,
            with_unified_memory=unified,
        )
        words = self.words(program, arguments, environment)
        paths = list(records.iterdir())
        if not paths:
            raise OpscopeError("the program never started CUDA, or CUDA did not load the recorder")
        recording = read_recording(paths[0])
        if recording.outcome.failure is not None:
            raise OpscopeError(f"the recorder did not start: {recording.outcome.failure}")
        return words, recording

    def words(self, program: Path, arguments: Sequence[object], environment: dict[str, str]) -> list[str]:
        """What a program prints."""
        command = [str(program), *map(str, arguments)]
        run = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S
        )
        return run.stdout.split()


def median_ratio(candidate: list[int], reference: list[int]) -> float:
    return statistics.median(candidate) / statistics.median(reference)


def show(document: dict[str, Any]) -> int:
    """Print the figures; 1 if one is out of its bounds."""
    launches, add = document["launches"], document["add"]
    lost = [launches["count"] + 1 - kernels for kernels in launches["kernels"]]
    milliseconds = {
        name: [round(one / 1e6, 1) for one in values] for name, values in launches["samples_ns"].items()
    }
    for name, values in milliseconds.items():
        print(f"  {name:32} {values} ms")
    print(f"  recorded / bare                  {launches['ratio']:.3f} (at most {MOST_RATIO})")
    print(f"  without unified memory           {launches['ratio_without_unified_memory']:.3f}")
    print(f"  kernels lost                     {lost}, dropped {launches['dropped']}")
    print(f"  convert, load                    {launches['convert_s']:.2f} s, {launches['load_s']:.2f} s")
    print(f"  add: recorded against events     {100 * add['difference']:+.2f} % ({add['kernel_ns']} ns)")
    print(f"  unified memory                   {add['unified_memory']} {add['unified_refusal'] or ''}")
    for row in add["reports"]["cuda_gpu_mem_size_sum"]:
        print(f"    {row['Operation']}: {row['Count']} copies, {row['Total (MB)']} MB")
    for row in add["reports"]["cuda_api_sum"]:
        print(f"    {row['Name']}: {row['Num Calls']} calls, {row['Total Time (ns)']} ns")
    print(f"  {document['duration_s']:.1f} s")
    is_good = (
        launches["ratio"] <= MOST_RATIO
        and not any(lost)
        and not any(launches["dropped"])
        and abs(add["difference"]) <= MOST_DIFFERENCE
    )
    print("  all within their bounds" if is_good else "  OUT OF BOUNDS")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
