"""The first changes shown for scripts as users write them, applied by hand and timed without a profiler.

    python benchmarks/field/first_changes.py FOLDER_OF_SCRIPTS RESULT.json

Processes of one program differ by a third on a busy host, so a change is switched on and off within one
process: blocks of steps with and without it take turns. The first steps of a block do not count, nor do the
first two blocks; the gain is the median of the differences of neighbors. A step is one of the optimizer, an
encoded batch, or a token.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

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
MODEL_CALL = "h = m(input_ids=ids, attention_mask=mask).last_hidden_state"
# Script: the change, block and lead-in, steps that END_OF ends at once, and the edits that switch the change.
TRIALS = {
    "moe_loop": ("fused", 12, 3, 1, [
        ("opt = torch.optim.AdamW(net.parameters(), lr=1e-4)",
         "opts = [torch.optim.AdamW(net.parameters(), lr=1e-4, fused=f) for f in (None, True)]"),
        ("for _ in range(30):", "for n in range(168):\n    opt = opts[ON(n)]"),
        ("opt.zero_grad()", "opt.zero_grad(); END_OF(n)"),
    ]),
    "lora_lightning": ("tf32", 12, 3, 1, [
        ("(400, 512)", "(1600, 512)"), ("max_steps=40", "max_steps=169"),
        ("        loss = self.m(",
         "        END_OF(i - 1) if i else 0; torch.backends.cuda.matmul.allow_tf32 = ON(i); loss = self.m("),
    ]),
    "encode_list": ("bf16_autocast", 50, 10, 1, [
        ("for i in range(0, 1600, 32):", "for k, i in enumerate([*range(0, 1600, 32)] * 10):"),
        (MODEL_CALL,
         f"\n        with torch.autocast('cuda', dtype=torch.bfloat16, enabled=ON(k)): {MODEL_CALL}"),
        (".cpu().numpy())", ".float().cpu().numpy()); END_OF(k)"),
    ]),
    "t5_generate": ("compile", 3, 1, 40, [
        (".half().eval()", ".half().eval(); models = [m, torch.compile(m)]"),
        ("for _ in range(3):", "for n in range(36):"),
        ("        m.generate(", "        models[ON(n)].generate("),
        ("do_sample=False)", "do_sample=False); END_OF(n)"),
    ]),
}  # fmt: skip


def blocks_ms(name: str, folder: Path) -> list[tuple[int, float]]:
    """Whether a block had the change, and milliseconds of one of its steps, in their order.

    Raises:
        SystemExit: An edit does not apply, or the script fails.
    """
    _, block, lead_in, steps, edits = TRIALS[name]
    text = (folder / f"{name}.py").read_text(encoding="utf-8")
    for old, new in edits:
        if old not in text:
            raise SystemExit(f"{name} has no {old!r}")
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
    for name, (change, *_) in TRIALS.items():
        try:
            found[name] = {"change": change, **compared(blocks_ms(name, folder))}
        except (SystemExit, statistics.StatisticsError, subprocess.TimeoutExpired) as error:
            found[name] = {"change": change, "error": str(error)}
        print(name, found[name], flush=True)
        result.write_text(json.dumps({"programs": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
