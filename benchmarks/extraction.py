"""Whether recorded calls run alone as they ran in the program: `opscope extract` on whole traces.

    python benchmarks/extraction.py TRACE …

Of the distinct calls that make up 95 % of the time of kernels below operators: how many are written and run,
and of how many the arguments were recorded. On a GPU they are recorded alone and held against the trace:
kernels, grids, blocks and the median time, with cold caches and with all but weights written just before.
Without one they run on the CPU, or on `meta`.
"""

from __future__ import annotations

import inspect
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from harness import environment, parser_of, write
from opscope import load
from opscope.analysis.summary import Summary
from opscope.errors import OpscopeError
from opscope.extraction.alone_calls import AloneCall, alone_calls, extracted
from opscope.extraction.starts import StartKind
from opscope.model.session import Session

SHARE, MOST_BYTES = 0.95, 1 << 30
NEAR, REPETITIONS = 0.1, 10
# Read long before the call; and what a level-2 cache of 50 MB still holds of the rest.
WEIGHTS, MOST_LEFT_BYTES = frozenset({"weight", "bias", "mat2"}), 16 << 20
HAS_GPU = torch.cuda.is_available()

# What is said of a call whose arguments the recorder left out.
UNRECORDED = ("was not recorded", "were not recorded", "PyTorch records no", "members are recorded")

# What each call launched, in order, and how long that took.
RECORDED = """
SELECT o.operator_id, sum(a.duration_ns),
    list((k.name, [grid_x, grid_y, grid_z], [block_x, block_y, block_z]) ORDER BY a.start_ns)
FROM operators o JOIN device_activities a ON a.trace_id = o.trace_id AND a.kind = 'kernel'
    AND a.operator_id BETWEEN o.operator_id AND o.last_descendant_id
JOIN kernel_names k USING (name_id)
WHERE list_contains($1, o.operator_id) GROUP BY ALL"""
LAUNCHED = """
SELECT activity_id, duration_ns, [(name, [grid_x, grid_y, grid_z], [block_x, block_y, block_z])]
FROM device_activities JOIN kernel_names USING (name_id) WHERE list_contains($1, activity_id)"""


def main() -> None:
    parser = parser_of(__doc__, "extraction.json")
    parser.add_argument("traces", type=Path, nargs="+")
    options = parser.parse_args()
    results: dict[str, Any] = {"environment": environment(), "traces": []}
    for path in options.traces:
        results["traces"].append(row := trace_row(path))
        print({key: value for key, value in row.items() if key != "calls"}, flush=True)
        write(options.output, results)


def trace_row(path: Path) -> dict[str, Any]:
    with load(path) as session:
        every = sorted(alone_calls(session, Summary(session).efficiency), key=lambda one: -one.device_ns)
        calls = [one for one in every if not (one.then or one.sources or one.collective)]  # operators
        whole_ns = sum(one.device_ns for one in calls)
        rows: list[dict[str, Any]] = []
        while calls and sum(row["device_ns"] for row in rows) < SHARE * whole_ns:
            rows.append(call_row(session, calls.pop(0)))
    counted = Counter(row["outcome"] for row in rows)
    unrecorded = sum(any(one in row.get("error", "") for one in UNRECORDED) for row in rows)
    held = [row for row in rows if "same_kernels" in row]
    held_ns = sum(row["device_ns"] for row in held) or 1
    shares = {
        name: round(sum(row["device_ns"] for row in held if row[name]) / held_ns, 4)
        for name in ("same_kernels", "near", "between")
        if held
    }
    return {
        "trace": path.name,
        "count": len(rows),
        "recorded": len(rows) - unrecorded,
        **counted,
        **shares,
        "calls": rows,
    }


def call_row(session: Session, one: AloneCall) -> dict[str, Any]:
    row: dict[str, Any] = {"call": one.call.name, "shapes": one.shapes, "device_ns": one.device_ns}
    if isinstance(file := extracted(1, one, start=None if one.launch else StartKind.ATEN).file, OpscopeError):
        return {**row, "outcome": "not written", "error": str(file)}
    text = file.text
    names: dict[str, Any] = {"__name__": "call"}
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:  # Triton reads a kernel's source there
            print(text, file=file, flush=True)
            exec(compile(text, file.name, "exec"), names)
        names["DEVICE"] = "meta"
        size = sum(one.nbytes for one in flat(names["make_inputs"](torch.device("meta"), 0)))
        names["DEVICE"] = "cuda" if HAS_GPU else "cpu" if size < MOST_BYTES else "meta"
        inputs = names["make_inputs"](torch.device(names["DEVICE"]), 0)
        if not HAS_GPU:
            names["reference"](*inputs)
            return {**row, "outcome": f"runs on {names['DEVICE']}"}
        given = zip(inspect.signature(names["reference"]).parameters, inputs, strict=True)
        is_batched = one.call.name == "aten::bmm"
        left = flat([value for name, value in given if is_batched or name not in WEIGHTS])
        kernels, device_ns = recorded_alone(names["reference"], inputs, left)
        cold_ns = recorded_alone(names["reference"], inputs, [])[1]
    except Exception as error:  # noqa: BLE001 - each is counted
        return {**row, "outcome": "fails", "error": f"{type(error).__name__}: {str(error)[:300]}"}
    before = session.query(LAUNCHED if one.launch else RECORDED, [list(one.activity_ids or one.operator_ids)])
    median_ns = statistics.median(ns for _, ns, _ in before)
    sets = [Counter((name, *grid, *block) for name, grid, block in launched) for *_, launched in before]
    return {
        **row,
        "outcome": "runs on cuda",
        "same_kernels": (is_same := kernels in sets),
        **({} if is_same else {"kernels_alone": [name[:80] for name, *_ in kernels]}),
        "near": abs(device_ns / median_ns - 1) <= NEAR,
        "between": (1 - NEAR) * device_ns <= median_ns <= (1 + NEAR) * cold_ns,
        "recorded_ns": median_ns,
        "alone_ns": device_ns,
        "cold_ns": cold_ns,
    }


def recorded_alone(function: Any, inputs: Any, left: Sequence[Any]) -> tuple[Counter[tuple[Any, ...]], float]:
    """The kernels of one call, and the median of their time, with these tensors alone left in the cache."""
    flush = torch.zeros(64 << 20, dtype=torch.float32, device="cuda")
    for _ in range(3):
        function(*inputs)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPETITIONS):
            flush.sum()  # read: what is written would have to leave the cache during the call
            for tensor in left:
                if tensor.nbytes <= MOST_LEFT_BYTES:
                    tensor.clone()
            torch.cuda._sleep(1)  # marks where the call begins, and where it ends
            torch.cuda.synchronize()
            function(*inputs)
            torch.cuda._sleep(1)
            torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    kernels = sorted((one for one in events if one.get("cat") == "kernel"), key=lambda one: one["ts"])
    parts: list[list[Any]] = [[]]
    for one in kernels:
        if "spin_kernel" in one["name"]:
            parts.append([])
        else:
            parts[-1].append(one)
    calls = parts[1::2]
    assert len(calls) == REPETITIONS
    found = Counter((one["name"], *one["args"]["grid"], *one["args"]["block"]) for one in calls[-1])
    return found, statistics.median(sum(one["dur"] for one in call) * 1e3 for call in calls)


def flat(values: Any) -> list[Any]:
    every = (one for value in values for one in (flat(value) if isinstance(value, list) else [value]))
    return [one for one in every if one is not None]


if __name__ == "__main__":
    main()
