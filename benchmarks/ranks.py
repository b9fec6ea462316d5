"""Many ranks with known truth: made from four recorded ones, read and analyzed; time and memory by number.

    python benchmarks/ranks.py ../shared/traces/h200 --ranks 128 512 --output benchmarks/results/ranks.json
    python benchmarks/ranks.py ../shared/traces/h200 --ranks 64 --pairs 5 --hta-python PYTHON

Each rank is a recorded one with its own number, clock offset and collectives shorter by up to a percent. Of
every size four jobs are made: unperturbed; with a steady straggler (the recorded late rank in one place);
with one collective to which one rank comes late; with one whose size differs on one rank. Nothing may be
found in the first, and in each other the rank that was planted.

`--pairs` reads the unperturbed job of the first size by Dask clusters of this machine of one and of two
workers, in turns: every sample, and the best of either. The same job is read by one process, by processes
and by a cluster: all JSON documents must be the same, byte for byte.
`--hta-python`: a Python with HolisticTraceAnalysis, whose overlap of communication and computation of 8 ranks
(the four recorded ones twice, as they are and repeated to `--hta-mb` each) is held against that of
opscope, with the time that both take in turns, imports left out. HTA is asked not to round
nanoseconds away and not to leave the last step out.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from harness import environment, parser_of, printed, write
from reading import make_trace

MS = 1000  # of a trace's microseconds
LATE_MS = 5
HTA_RANKS = 8


def main() -> int:
    parser = parser_of(__doc__, "ranks.json")
    parser.add_argument("recordings", type=Path, help="folder with ddp_w4 and ddp_straggler_w4")
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--hta-python", help="a Python with HolisticTraceAnalysis")
    parser.add_argument("--hta-mb", type=int, default=40)
    options = parser.parse_args()
    even = [read(path) for path in sorted((options.recordings / "ddp_w4").glob("rank*.json.gz"))]
    late = [read(path) for path in sorted((options.recordings / "ddp_straggler_w4").glob("rank*.json.gz"))]
    document: dict[str, Any] = {"environment": environment()}
    if options.output.is_file():  # of another part
        document = json.loads(options.output.read_text(encoding="utf-8"))
    if options.pairs:
        with job(options.ranks[0], "unperturbed", even) as (folder, _):
            document["spread"] = {"ranks": options.ranks[0], **spread(folder, options.pairs)}
            print(json.dumps(document["spread"]))
    if options.hta_python:
        document["hta"] = [
            against_hta(options.recordings / "ddp_w4", options.hta_python, size_mb)
            for size_mb in (0, options.hta_mb)
        ]
        print(json.dumps(document["hta"]))
    if not options.pairs and not options.hta_python:
        document["runs"] = []
        for count in options.ranks:
            for what in ("unperturbed", "straggler", "late", "mismatch"):
                with job(count, what, late if what == "straggler" else even) as (folder, planted):
                    run = judged(folder, what, count, options.workers, planted)
                document["runs"].append(run)
                print(json.dumps({k: v for k, v in run.items() if k != "findings"}), flush=True)
    write(options.output, document)
    runs = document.get("runs", [])
    is_same = document.get("spread", {}).get("documents_are_the_same", True)
    return 0 if is_same and all(one["is_right"] for one in runs) else 1


@contextmanager
def job(count: int, what: str, recorded: Sequence[dict[str, Any]]) -> Iterator[tuple[Path, int | None]]:
    """A folder with the ranks of a job; the rank that was planted."""
    with tempfile.TemporaryDirectory(prefix="opscope-ranks-") as folder:
        yield Path(folder), make(Path(folder), what, count, recorded)


def spread(folder: Path, pairs: int) -> dict[str, Any]:
    """One and two workers of a cluster in turns, and whether every way tells the same."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    documents, peaks = {}, []
    for _ in range(pairs):
        for workers, found in seconds.items():
            with cluster(workers) as address:
                run = analyzed(folder, "dask", address)
                peaks.append(run["peak_mb"])
            found.append(run["load_s"] + run["analyze_s"])
            documents[f"dask {workers}"] = run["document_sha256"]
    documents["one process"] = analyzed(folder, "workers", "1")["document_sha256"]
    documents["2 processes"] = analyzed(folder, "workers", "2")["document_sha256"]
    ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
    return {
        "seconds_of_one": seconds[1],
        "seconds_of_two": seconds[2],
        "ratio_of_pairs": ratios,
        "ratio_median": statistics.median(ratios),
        "ratio_of_least": min(seconds[1]) / min(seconds[2]),
        "peak_mb": max(peaks),
        "documents_are_the_same": len(set(documents.values())) == 1,
    }


@contextmanager
def cluster(workers: int) -> Iterator[str]:
    """The address of a Dask cluster of this machine."""
    import distributed

    with distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as local:
        yield local.scheduler_address


def against_hta(recorded: Path, python: str, size_mb: int, rounds: int = 3) -> dict[str, Any]:
    """Overlap of communication and computation by both, and how long either took; in turns."""
    ours, theirs = [], []
    with tempfile.TemporaryDirectory(prefix="opscope-ranks-") as folder:
        write_eight(recorded, Path(folder), size_mb)
        size_bytes = sum(one.stat().st_size for one in Path(folder).iterdir())
        for _ in range(rounds):
            ours.append(said(sys.executable, "overlap_by_opscope", folder))
            theirs.append(said(python, "overlap_by_hta", folder))
    return {
        "ranks": HTA_RANKS,
        "size_bytes": size_bytes,
        "opscope_s": [one["s"] for one in ours],
        "hta_s": [one["s"] for one in theirs],
        "opscope_whole_s": [one["whole_s"] for one in ours],
        "hta_whole_s": [one["whole_s"] for one in theirs],
        **{
            name: statistics.median(one[key] for one in theirs) / statistics.median(one[key] for one in ours)
            for name, key in (("ratio_of_medians", "s"), ("ratio_of_whole_medians", "whole_s"))
        },
        "opscope_overlap_percent": ours[0]["overlap"],
        "hta_overlap_percent": theirs[0]["overlap"],
        "largest_difference_percent": max(
            abs(ours[0]["overlap"][rank] - percent) for rank, percent in theirs[0]["overlap"].items()
        ),
    }


def write_eight(recorded: Path, folder: Path, size_mb: int) -> None:
    """Four recorded ranks twice, under numbers of their own, each repeated to a size."""
    four = sorted(recorded.glob("rank*.json.gz"))
    for rank in range(HTA_RANKS):
        text = gzip.decompress(four[rank % len(four)].read_bytes()).decode()
        text = re.sub(r'"rank": *\d+', f'"rank": {rank}', text)
        text = re.sub(r'"world_size": *\d+', f'"world_size": {HTA_RANKS}', text)
        file = folder / f"rank{rank}.json.gz"
        file.write_bytes(gzip.compress(text.encode(), 1))
        if size_mb:
            make_trace(file, folder / f"rank{rank}.json", size_mb * 1_000_000)
            file.unlink()


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


def said(python: str, name: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a script prints, run in a process of its own; from a file, for it starts processes."""
    script = (Path(__file__).with_suffix("") / f"{name}.py.txt").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "script.py"
        file.write_text(script.replace("LATE_NS", str(LATE_MS * 1_000_000)), encoding="utf-8")
        text = printed([python, file, *arguments], HTA_DISABLE_NS_ROUNDING="1")
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def analyzed(folder: Path, how: str, value: str) -> dict[str, Any]:
    """One process that reads and analyzes the folder, with the processes that it asks for."""
    return said(sys.executable, "analyze", str(folder), how, value)


def judged(folder: Path, what: str, count: int, workers: int, planted: int | None) -> dict[str, Any]:
    """A job read and analyzed, and whether what was planted was found, and nothing else."""
    started = time.perf_counter()
    found = analyzed(folder, "workers", str(workers))
    straggler = found["straggler"]
    steady = None if straggler is None else straggler["rank"]
    told = any(f"rank {planted} of" in one for one in found["findings"])
    is_right = (
        found["conserved"]
        and {
            "unperturbed": straggler is None and not found["findings"] and not found["late_ranks"],
            "straggler": steady == planted and not found["findings"],
            "late": straggler is None and set(found["late_ranks"]) == {planted} and not found["findings"],
            "mismatch": told and straggler is None,
        }[what]
    )
    return {
        "job": what, "ranks": count, "workers": workers, "planted": planted, "is_right": is_right,
        "wall_s": time.perf_counter() - started, **found,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
