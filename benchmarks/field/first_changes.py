"""First changes shown for scripts as users write them, each switched on and off and timed without a profiler.

    python benchmarks/field/first_changes.py RESULT.json FOLDER_OR_SCRIPT…  [--keep FOLDER] [--again COUNT]

Processes of one program differ by a third on a busy host, so changes are switched within one process
(`trials`, `switches`): blocks of steps with and without each take turns. The gain is the median over rounds
of what a block takes less than its neighbors without a change, with an exact interval of that median. One
script runs at a time on each GPU, on its own share of the processor's cores. `--keep` leaves each recording
and first screen there; `--again` records each script this often, so that one sees whether both sides of its
step and its first change stay.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from scoring import FIRST_SCREEN, Measured, Shown, misses, verdict
from trials import Trial, trials_of

LIMIT_S = 360
# What the advice of a code is called in `trials`; others by their code.
CHANGES = {
    "advice.tf32_off": "tf32", "advice.reduced_precision": "bf16",
    "advice.layout_conversion": "channels_last", "advice.unfused_pointwise": "compile",
    "advice.loop": "batched", "advice.per_tensor_loop": "foreach_ema",
    "advice.eager_attention": "advice.attention_backend",
    "advice.launch_bound": "compile", "advice.unused_work": "truncated", "advice.padding": "dynamic_padding",
    "advice.repeated_work": "hoisted", "advice.recomputation": "no_recompute",
    "advice.checks": "advice.host_sync", "advice.anomaly_detection": "no_anomaly",
}  # fmt: skip
# A wider one is shown as "unknown, try it".
WIDEST_INTERVAL = 3.0
SIDES = ("device", "host")
CONFIDENCE = 0.95  # of the interval of a median
# May say: pin the host's tensors.
_PINNED = ("advice.host_sync",)


def first_sibling(core: int) -> int:
    """The first thread of a thread's physical core, or itself where that cannot be read."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    try:
        return int(re.split("[,-]", path.read_text(encoding="ascii"))[0])
    except (OSError, ValueError):
        return core


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The exact interval of the median by order statistics; of too few values for one, the least and most."""
    ordered, outside = sorted(values), 0.0
    for at in range(len(ordered)):
        # How likely at most this many of them are on one side of the true median.
        outside += 2 * math.comb(len(ordered), at) / 2 ** len(ordered)
        if outside > 1 - CONFIDENCE:
            break
    at = max(at, 1)
    return ordered[at - 1], ordered[-at]


def ran(
    command: Sequence[str | Path], device: int, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A process that sees one GPU, on its share of the cores; SystemExit where it takes too long."""
    # Threads of one core side by side: those of two shares would disturb each other.
    cores = sorted(os.sched_getaffinity(0), key=lambda core: (first_sibling(core), core))
    count = len(cores) // max(torch.cuda.device_count(), 1)
    share = cores[device * count :][:count]
    visible = list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    own = {"OMP_NUM_THREADS": str(len(share))}
    own["CUDA_VISIBLE_DEVICES"] = visible[device] if visible else str(device)
    try:
        return subprocess.run(
            ["taskset", "-c", ",".join(map(str, share)), *map(str, command)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            cwd=cwd,
            env=os.environ | own | environment,
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{Path(command[-1]).stem} took longer than {LIMIT_S} s") from None


def edited(text: str, trial: Trial) -> str:
    """The script with its switches.

    Raises:
        SystemExit: An edit does not apply once.
    """
    for old, new in trial.edits:
        if text.count(old) != 1:
            raise SystemExit(f"{old!r} is there {text.count(old)} times")
        text = text.replace(old, new)
    return f"from switches import endless as ENDLESS, is_on as ON, step as STEP\n{text}"


def measured(path: Path, trial: Trial, device: int) -> dict[str, Any]:
    """What every change of a script takes off one step, in milliseconds.

    Raises:
        SystemExit: The script fails.
    """
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / path.name
        script.write_text(edited(path.read_text(encoding="utf-8"), trial), encoding="utf-8")
        done = ran(
            [sys.executable, script],
            device,
            Path(scratch),
            PYTHONPATH=f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}",
            FIELD_CHANGES=json.dumps(trial.changes),
            FIELD_BLOCK=str(trial.block),
            FIELD_LEAD_IN=str(trial.lead_in),
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("BLOCKS ")]
    if not lines:
        raise SystemExit(f"{path.stem} with switches failed: {done.stderr[-400:]}")
    blocks = [
        (change, 1000 * s * trial.per_step) for change, s in json.loads(lines[0].removeprefix("BLOCKS "))
    ]
    kept = range(2 * len(trial.changes), len(blocks))
    without = [blocks[at][1] for at in kept if not blocks[at][0]]
    changes = {}
    for change in trial.changes:
        mine = [at for at in kept if blocks[at][0] == change]
        gains = [
            statistics.mean(blocks[near][1] for near in (at - 1, at + 1) if near < len(blocks))
            - blocks[at][1]
            for at in mine
        ]
        changes[change] = {
            "with_ms": round(statistics.median(blocks[at][1] for at in mine), 3),
            "gain_ms": round(statistics.median(gains), 3),
            "gain_interval_ms": [round(end, 3) for end in median_interval(gains)],
        }
    return {"without_ms": round(statistics.median(without), 3), "rounds": len(mine), "changes": changes}


def shown_of(document: Mapping[str, Any], tried: Collection[str]) -> list[Shown]:
    """The changes of the first screen, as `analysis.json` has them, by the names of those that are tried."""
    shown: dict[str, Shown] = {}
    for one in document["findings"]:
        gain_ns, interval_ns = one["estimated_gain_ns_per_step"], one["gain_interval_ns_per_step"]
        applicability = one["applicability"]
        is_open = bool(one["change"]) and applicability["status"] == "unknown"
        change = CHANGES.get(one["code"], one["code"])
        if one["code"] in _PINNED and "pin_memory" in (one["change"] or ""):
            change = "pinned"
        # Trials autocast; weights of 16 bits are another change.
        if change == "bf16" and "autocast" not in (one["change"] or ""):
            change = "bf16_weights"
        if "reduce-overhead" in (one["change"] or ""):  # graphs, written by torch.compile or by hand
            change = next((name for name in ("reduce_overhead", "cuda_graph") if name in tried), change)
        if not one["code"].startswith("advice.") or not (gain_ns or is_open) or change in shown:
            continue
        low, high = interval_ns or (gain_ns, gain_ns)
        is_known = gain_ns and 0 < high <= WIDEST_INTERVAL * low and not applicability["blocked_by"]
        is_numbered = len(shown) < FIRST_SCREEN  # the others are named without a number
        known = (gain_ns / 1e6, (low / 1e6, high / 1e6)) if is_known and is_numbered else ()
        shown[change] = Shown(change, *known)
    return list(shown.values())


def recorded(path: Path, device: int, keep: Path | None, tried: Collection[str]) -> dict[str, Any]:
    """Milliseconds of the unprofiled step and of each side alone, and the changes of the first screen.

    Raises:
        SystemExit: The script cannot be recorded.
    """
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        command = [sys.executable, "-m", "opscope", "run", "--output-dir", out, path.resolve()]
        done = ran(command, device, Path(scratch), COLUMNS="110")
        if keep is not None:
            kept = keep / path.stem
            shutil.copytree(out, kept, dirs_exist_ok=True) if out.exists() else kept.mkdir(
                parents=True, exist_ok=True
            )
            (kept / "screen.txt").write_text(
                f"rc {done.returncode}\n{done.stdout}\n{done.stderr}", encoding="utf-8"
            )
        if done.returncode:
            raise SystemExit(f"{path.stem} was not recorded: {done.stderr[-400:]}")
        document = json.loads((out / "analysis.json").read_text(encoding="utf-8"))
    simulated, timed = document["simulation"] or {}, document["step"]["unrecorded_ns"] or {}
    times_ns = {"step_ms": timed.get("median")} | {
        f"{side}_ms": simulated.get(f"{side}_ns") for side in SIDES
    }
    return {name: ns and ns / 1e6 for name, ns in times_ns.items()} | {"shown": shown_of(document, tried)}


def judged(path: Path, device: int, keep: Path | None, again: int) -> dict[str, Any]:
    """The row of one script."""
    began, (first, *others) = time.perf_counter(), trials_of(path)
    tried = {change for trial in (first, *others) for change in trial.changes}
    row: dict[str, Any] = {"program": path.stem}
    found: list[dict[str, Any]] = []
    try:
        found = [recorded(path, device, keep if not at else None, tried) for at in range(again)]
    except SystemExit as error:
        row["error"] = str(error)[-500:]
    try:
        row |= measured(path, first, device)
        for trial in others:
            row["changes"] |= measured(path, trial, device)["changes"]
    except (SystemExit, statistics.StatisticsError) as error:
        row["error_of_changes"] = str(error)[-500:]
    gains: dict[str, Measured | None] = {
        change: Measured(one["gain_ms"], *one["gain_interval_ms"])
        for change, one in row.get("changes", {}).items()
    }
    if found:
        shown, step_ms = found[0]["shown"], found[0]["step_ms"] or row.get("without_ms")
        row |= {
            **found[0],
            "shown": [one._asdict() | {"verdict": verdict(one, gains)} for one in shown],
            "missed": misses(shown, gains, step_ms) if step_ms else [],
        }
        if again > 1:
            row["again"] = [one | {"shown": [each._asdict() for each in one["shown"]]} for one in found]
    row["took_s"] = round(time.perf_counter() - began, 1)
    return row


def main() -> None:
    """Judge each script, and write after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("result", type=Path)
    parser.add_argument("scripts", type=Path, nargs="+")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--again", type=int, default=1)
    options = parser.parse_args()
    scripts = [
        path for one in options.scripts for path in ([one] if one.is_file() else sorted(one.glob("*.py")))
    ]
    devices: queue.Queue[int] = queue.Queue()
    for device in range(max(torch.cuda.device_count(), 1)):
        devices.put(device)
    own = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "at_once": devices.qsize()}
    found: list[dict[str, Any]] = []

    def run_on_a_device(path: Path) -> None:
        device = devices.get()
        try:
            found.append(judged(path, device, options.keep, options.again))
        finally:
            devices.put(device)
        print(json.dumps(found[-1]), flush=True)
        document = {"environment": own, "programs": sorted(found, key=lambda row: row["program"])}
        options.result.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    with ThreadPoolExecutor(devices.qsize()) as pool:
        list(pool.map(run_on_a_device, scripts))


if __name__ == "__main__":
    main()
