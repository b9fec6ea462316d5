"""The first changes shown for scripts as users write them, applied by hand and timed without a profiler.

    python benchmarks/field/first_changes.py FOLDER_OF_SCRIPTS RESULT.json

Each variant runs in a process of its own, all in turns. A step is one of the optimizer, a batch that is
encoded, or a token that is generated; the first third of them does not count.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

TURNS = 2
LIMIT_S = 120
CLOCK = "import time, torch\nTIMES = []\n"
AT_OPTIMIZER = """from torch.optim.optimizer import register_optimizer_step_post_hook as after_step
after_step(lambda *_: TIMES.append(time.perf_counter()))
"""
AT_LINE = "        torch.cuda.synchronize(); TIMES.append(time.perf_counter()); "
END = "\ntorch.cuda.synchronize()\nimport json\nprint('TIMES', json.dumps(TIMES))\n"
MODEL_CALL = "h = m(input_ids=ids, attention_mask=mask).last_hidden_state"
SEED = "torch.manual_seed(0)"
TF32 = (SEED, SEED + "; torch.set_float32_matmul_precision('high')")
# Script: where its steps are marked, steps of one mark, and the edits by name.
PROGRAMS = {
    "moe_loop": (None, 1, {"fused": ("lr=1e-4)", "lr=1e-4, fused=True)")}),
    "lora_lightning": (None, 1, {"tf32": TF32}),
    "encode_list": (
        "        out.append(",
        1,
        {
            "tf32": TF32,
            "bf16_autocast": (
                MODEL_CALL,
                f"\n        with torch.autocast('cuda', dtype=torch.bfloat16): {MODEL_CALL}",
            ),
        },
    ),
    "t5_generate": (
        "        m.generate(x",
        40,
        {"compile": (".half().eval()", ".half().eval(); m = torch.compile(m)")},
    ),
}


def replaced(text: str, old: str, new: str) -> str:
    """The text with an edit that must apply."""
    if old not in text:
        raise SystemExit(f"the script has no {old!r}")
    return text.replace(old, new)


def step_ms(text: str, steps: int) -> float | None:
    """Milliseconds of a step of a script; None where it failed or took too long."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(text, encoding="utf-8")
        try:
            ran = subprocess.run(
                [sys.executable, str(path)], capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return None
    lines = [line for line in ran.stdout.splitlines() if line.startswith("TIMES ")]
    if not lines:
        return None
    times = json.loads(lines[0].removeprefix("TIMES "))
    lengths = [after - before for before, after in pairwise(times)]
    return round(statistics.mean(lengths[len(lengths) // 3 :]) * 1000 / steps, 3)


def main(folder: Path, result: Path) -> None:
    """Time every variant and write the result."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for _ in range(TURNS):
        for name, (mark, steps, edits) in PROGRAMS.items():
            text = (folder / f"{name}.py").read_text(encoding="utf-8").replace("range(3)", "range(8)")
            bare = (
                CLOCK
                + (AT_OPTIMIZER + text if mark is None else replaced(text, mark, AT_LINE + mark.lstrip()))
                + END
            )
            for variant, edited in {
                "bare": bare, **{edit: replaced(bare, *pair) for edit, pair in edits.items()},
            }.items():  # fmt: skip
                ms = step_ms(edited, steps)
                found.setdefault(name, {}).setdefault(variant, []).append(ms)
                print(name, variant, ms, flush=True)
                result.write_text(json.dumps({"ms_per_step": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
