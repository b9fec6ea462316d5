"""What recording a CUDA program through `opscope trace` costs, and whether it is right, as JSON.

    python benchmarks/gpu_trace.py --output benchmarks/results/h200_trace.json

Needs nvcc and a GPU; takes less than a minute. A program of 100,001 launches runs bare, recorded, and
recorded without unified memory, in turn; its own clock around the last 100,000 and their wait is compared.
The guide's add program says by CUDA events what its kernel took. Expected of an H200: 1.2 to 1.3 times the
bare time, no record lost, the kernel within 5 %.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import opscope
from harness import environment, parser_of, printed, write
from opscope.hardware.driver import require_nvcc

LAUNCHES = Path(__file__).with_name("launches.cu").read_text(encoding="utf-8")
ADD = (Path(__file__).parents[1] / "tests/gpu/add.cu").read_text(encoding="utf-8")
MOST_RATIO, MOST_DIFFERENCE = 1.35, 0.05
WAYS: dict[str, list[str]] = {"recorded": [], "without_unified_memory": ["--without-unified-memory"]}


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--launches", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpu-trace-") as scratch:
        document = {
            "environment": environment(),
            "launches": launches(Path(scratch), options.launches, options.repeats),
            "add": add(Path(scratch)),
        }
    write(options.output, document)
    found, kernel = document["launches"], document["add"]
    print(f"  recorded / bare                  {found['ratio']['recorded']:.3f} (at most {MOST_RATIO})")
    print(f"  without unified memory           {found['ratio']['without_unified_memory']:.3f}")
    print(f"  kernels lost                     {found['lost']}, dropped {found['dropped']}")
    print(f"  loading one                      {found['load_s']:.2f} s")
    print(f"  add: recorded against events     {100 * kernel['difference']:+.2f} %")
    is_complete = not any((*found["lost"], *found["dropped"]))
    is_near = found["ratio"]["recorded"] <= MOST_RATIO and abs(kernel["difference"]) <= MOST_DIFFERENCE
    return 0 if is_complete and is_near else 1


def launches(folder: Path, count: int, repeats: int) -> dict[str, Any]:
    """The program of launches, each way in turn."""
    program = built(folder, "launches", LAUNCHES)
    samples_ns: dict[str, list[int]] = {way: [] for way in ("bare", *WAYS)}
    documents = []
    printed([program, count])  # the machine's first start of CUDA
    for _ in range(repeats):
        samples_ns["bare"].append(int(printed([program, count])))
        for way, options in WAYS.items():
            words, document = recorded(folder, program, count, options=options)
            samples_ns[way].append(int(words[0]))
            documents.append(document)
    started = time.perf_counter()
    opscope.load(documents[-1]["traces"][0]["path"]).close()
    bare_ns = statistics.median(samples_ns["bare"])
    kernels = [sum(row["Instances"] for row in one["reports"]["cuda_gpu_kern_sum"]) for one in documents]
    return {
        "count": count,
        "samples_ns": samples_ns,
        "ratio": {way: statistics.median(samples_ns[way]) / bare_ns for way in WAYS},
        "lost": [count + 1 - one for one in kernels],
        "dropped": [one["traces"][0]["dropped_records"] for one in documents],
        "load_s": time.perf_counter() - started,
    }


def add(folder: Path) -> dict[str, Any]:
    """The guide's program: its kernel, its calls, its copies."""
    words, document = recorded(folder, built(folder, "add", ADD))
    events_ns = round(float(words[0]) * 1e6)
    with opscope.load(document["traces"][0]["path"]) as session:
        recorded_ns = session.scalar(
            "SELECT sum(duration_ns)::BIGINT FROM device_activities WHERE kind = 'kernel'"
        )
    return {
        "kernel_ns": recorded_ns,
        "events_ns": events_ns,
        "difference": recorded_ns / events_ns - 1,
        "findings": document["traces"][0]["findings"],
        "reports": document["reports"],
    }


def built(folder: Path, name: str, source: str) -> Path:
    (folder / f"{name}.cu").write_text(source)
    printed([require_nvcc(), "-O1", "-arch=native", "-o", folder / name, folder / f"{name}.cu"])
    return folder / name


def recorded(
    folder: Path, program: Path, *arguments: object, options: list[str] | None = None
) -> tuple[list[str], dict[str, Any]]:
    """What a recorded program prints, and what is said of the recording."""
    verb = [
        sys.executable,
        "-m",
        "opscope",
        "trace",
        "--json",
        "--force",
        "--output-dir",
        str(folder / "out"),
    ]
    command = [*verb, *(options or []), "--", str(program), *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (line,) = re.findall(r"^\d[\d. ]*$", done.stderr, re.MULTILINE)  # the program's own, among what is noted
    return line.split(), json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
