"""The first changes shown for scripts as users write them, applied by hand and timed without a profiler.

    python benchmarks/field/first_changes.py FOLDER_OF_SCRIPTS RESULT.json

Processes of one program differ by a third on a busy host, so a change is switched on and off within one process:
blocks of steps with and without it take turns. The first steps of a block do not count, nor do the first two blocks;
the gain is the median of the differences of neighbors. A step is one of the optimizer, an encoded batch, or a token.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from trials import TRIALS

LIMIT_S = 150
# Steps of a block, and how many of them do not count; `END_OF(n)` is called behind step n.
CLOCK = """import json, time, torch
BLOCK, LEAD_IN = {block}, {lead_in}
BLOCKS, BEGAN = [], 0.0
def ON(n): return n // BLOCK % 2 == 1
def END_OF(n):
    global BEGAN
    if n % BLOCK in (LEAD_IN - 1, BLOCK - 1):
        torch.cuda.synchronize(); now = time.perf_counter()
        if n % BLOCK == BLOCK - 1: BLOCKS.append((ON(n), (now - BEGAN) / (BLOCK - LEAD_IN)))
        BEGAN = now
"""
END = "\nprint('BLOCKS', json.dumps(BLOCKS))\n"


def blocks_ms(
    name: str, folder: Path, trial: tuple[str, int, int, int, list[tuple[str, str]]]
) -> list[tuple[int, float]]:
    """Whether a block had the change, and milliseconds of one of its steps, in their order.

    Raises:
        SystemExit: An edit does not apply, or the script fails.
    """
    _, block, lead_in, steps, edits = trial
    text = (folder / f"{name}.py").read_text(encoding="utf-8")
    for old, new in edits:
        if text.count(old) != 1:
            raise SystemExit(f"{name} has not exactly one {old!r}")
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "script.py"
        path.write_text(CLOCK.format(block=block, lead_in=lead_in) + text + END, encoding="utf-8")
        ran = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    lines = [line for line in ran.stdout.splitlines() if line.startswith("BLOCKS ")]
    if not lines:
        raise SystemExit(f"{name} failed: {ran.stderr[-400:]}")
    return [(int(on), 1000 * s / steps) for on, s in json.loads(lines[0].removeprefix("BLOCKS "))]


def compared(blocks: list[tuple[int, float]]) -> dict[str, float | list[float]]:
    """Medians of both arms, the gain of one step and the quartiles of it over neighboring blocks."""
    kept = blocks[2:]
    gains = sorted(one - other if not on else other - one for (on, one), (_, other) in pairwise(kept))
    return {
        "without_ms": round(statistics.median(ms for on, ms in kept if not on), 3),
        "with_ms": round(statistics.median(ms for on, ms in kept if on), 3),
        "gain_ms": round(statistics.median(gains), 3),
        "gain_quartiles_ms": [round(gains[len(gains) * at // 4], 3) for at in (1, 3)],
        "blocks": len(kept),
    }


def main(folder: Path, result: Path) -> None:
    """Time every change and write the result."""
    found: dict[str, dict[str, object]] = {}
    for name, trials in TRIALS.items():
        if not (folder / f"{name}.py").exists():
            continue
        for trial in trials:
            row: dict[str, object] = {"change": trial[0]}
            try:
                row |= compared(blocks_ms(name, folder, trial))
            except (SystemExit, statistics.StatisticsError, subprocess.TimeoutExpired) as error:
                row["error"] = str(error)
            found[f"{name}.{trial[0]}"] = row
            print(name, row, flush=True)
            result.write_text(json.dumps({"programs": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
