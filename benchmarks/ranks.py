"""Many ranks with known truth: made from four recorded ones, read and analyzed; time and memory by number.

    python benchmarks/ranks.py ../shared/traces/h200 --ranks 64 512 --output benchmarks/results/ranks.json

Each rank is a recorded one with its own number, clock offset and collectives shorter by up to a percent. Of
every size four jobs are made: unperturbed; with a steady straggler (the recorded late rank in one place);
with one collective to which one rank comes late; with one whose size differs on one rank. Nothing may be
found in the first, and in each other the rank that was planted.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

MS = 1000  # of a trace's microseconds
LATE_MS = 5
_ANALYZE = """
import json, resource, sys, time
import opscope
from opscope.report.summary_json import analysis_document

if __name__ == "__main__":
    folder, workers = sys.argv[1], int(sys.argv[2])
    started = time.perf_counter()
    session = opscope.load(folder, memory_limit="2GB", workers=workers or None)
    loaded = time.perf_counter()
    summary = opscope.summarize(session)
    document = analysis_document(summary)
    done = time.perf_counter()
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({
        "load_s": loaded - started,
        "analyze_s": done - loaded,
        "peak_mb": peaks[0] / 1024,
        "worker_peak_mb": peaks[1] / 1024,
        "conserved": not [one for check in session.check() for one in check.violations],
        "device_time_ns": summary.device_time_ns,
        "straggler": document["straggler"],
        "collectives": [{k: one[k] for k in ("name", "last_rank", "wait_ns", "transfer_ns")}
            for one in document["collectives"]],
        "findings": [one["message"] for one in document["findings"]
            if one["code"].startswith("collectives.")],
        "late_ranks": [one.ranks[one.last] for one in summary.collectives.matched if one.last is not None
            and (one.wait_ns or 0) > 0.9 * LATE_NS * (len(one.ranks) - 1)],
    }))
""".replace("LATE_NS", str(LATE_MS * 1_000_000))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", type=Path, help="folder with ddp_w4 and ddp_straggler_w4")
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    even = [read(path) for path in sorted((options.recordings / "ddp_w4").glob("rank*.json.gz"))]
    late = [read(path) for path in sorted((options.recordings / "ddp_straggler_w4").glob("rank*.json.gz"))]
    results = []
    for count in options.ranks:
        for what in ("unperturbed", "straggler", "late", "mismatch"):
            with tempfile.TemporaryDirectory(prefix="opscope-ranks-") as folder:
                planted = make(Path(folder), what, count, late if what == "straggler" else even)
                for workers in (options.workers, 0) if what == "unperturbed" else (options.workers,):
                    results.append(measured(Path(folder), what, count, workers, planted))
                    print(json.dumps({k: v for k, v in results[-1].items() if k != "findings"}))
    if options.output:
        environment = {"python": platform.python_version(), "cores": len(os.sched_getaffinity(0))}
        text = json.dumps({"environment": environment, "runs": results}, indent=1)
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0 if all(one["is_right"] for one in results) else 1


def read(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        document: dict[str, Any] = json.load(file)
    return document


def make(folder: Path, what: str, count: int, recorded: Sequence[dict[str, Any]]) -> int | None:
    """Write the ranks; the one that was planted."""
    chance = random.Random(7 * count)
    planted = None if what == "unperturbed" else chance.randrange(1, count)
    for rank in range(count):
        if what == "straggler":
            source = recorded[1] if rank == planted else recorded[(0, 2, 3)[rank % 3]]
        else:
            source = recorded[0] if what == "unperturbed" else recorded[1]
        events = list(perturbed(source["traceEvents"], chance.uniform(-60, 60) * 1_000_000, chance))
        if what == "late":
            come_late(events, is_late=rank == planted)
        elif what == "mismatch" and rank == planted:
            give_less(events)
        info = {**source["distributedInfo"], "rank": rank, "world_size": count}
        text = msgspec.json.encode({**source, "distributedInfo": info, "traceEvents": events})
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(text, 1))
    return planted


def perturbed(
    events: Sequence[dict[str, Any]], offset_us: float, chance: random.Random
) -> Iterator[dict[str, Any]]:
    """The events by another clock, collectives a percent shorter or longer."""
    for event in events:
        own = dict(event)
        if "ts" in own:
            own["ts"] = round(own["ts"] + offset_us, 3)
        if is_collective(own):
            own["dur"] = round(own["dur"] * chance.uniform(0.99, 1.0), 3)
        yield own


def is_collective(event: dict[str, Any]) -> bool:
    return event.get("cat") == "kernel" and "nccl" in event["name"]


def come_late(events: list[dict[str, Any]], *, is_late: bool) -> None:
    """One rank begins its fourth collective late, the others wait in theirs, and all goes on later."""
    kernel = [event for event in events if is_collective(event)][3]
    end = kernel["ts"] + kernel["dur"]
    for event in events:
        if event is not kernel and event.get("ts", 0) >= end:
            event["ts"] = round(event["ts"] + LATE_MS * MS, 3)
    if is_late:
        kernel["ts"] = round(kernel["ts"] + LATE_MS * MS, 3)
    else:
        kernel["dur"] = round(kernel["dur"] + LATE_MS * MS, 3)


def give_less(events: list[dict[str, Any]]) -> None:
    """One rank gives half the elements to one collective."""
    records = [event for event in events if event.get("args", {}).get("Collective name") == "allreduce"]
    for on_device in (False, True):
        mine = [event for event in records if is_collective(event) is on_device]
        # Of the last: the first may be of kernels launched before the window.
        record = sorted(mine, key=lambda one: float(one["ts"]))[-4]
        halves = {key: record["args"][key] // 2 for key in ("In msg nelems", "Out msg nelems")}
        record["args"] = {**record["args"], **halves}


def measured(folder: Path, what: str, count: int, workers: int, planted: int | None) -> dict[str, Any]:
    """One process that reads and analyzes the folder; whether it found what was planted, and nothing else."""
    script = folder.parent / f"{folder.name}.py"
    script.write_text(_ANALYZE, encoding="utf-8")
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, str(script), str(folder), str(workers)],
            capture_output=True,
            text=True,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        sys.exit(f"{what}, {count} ranks: {error.stderr[-2000:]}")
    finally:
        script.unlink()
    found: dict[str, Any] = json.loads(done.stdout)
    straggler = found["straggler"]
    steady = None if straggler is None or straggler["kind"] != "steady" else straggler["rank"]
    told = any(f"rank {planted} of" in one for one in found["findings"])
    is_right = (
        found["conserved"]
        and {
            "unperturbed": steady is None and not found["findings"] and not found["late_ranks"],
            "straggler": steady == planted and not found["findings"],
            "late": set(found["late_ranks"]) == {planted} and not found["findings"],
            "mismatch": told and steady is None,
        }[what]
    )
    return {
        "job": what, "ranks": count, "workers": workers, "planted": planted, "is_right": is_right,
        "wall_s": time.perf_counter() - started, **found,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
