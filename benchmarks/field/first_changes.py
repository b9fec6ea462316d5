"""The first changes shown for scripts as users write them, applied by hand and timed without a profiler.

    python benchmarks/field/first_changes.py RESULT.json FOLDER_OF_SCRIPTS…

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
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from scoring import Shown, misses, verdict

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


class Trial(NamedTuple):
    """One change of one script.

    Attributes:
        edits: Texts of the script and what comes in their place, so that the change can be switched.
        block: Steps of a block.
        lead_in: How many of them do not count.
        steps: That one call of END_OF ends.
    """

    edits: Sequence[tuple[str, str]]
    block: int = 10
    lead_in: int = 3
    steps: int = 1


def looped(count: int, *switches: str, indent: int = 4) -> tuple[str, str]:
    """The edit of `for step in range(count):` that switches at the start of each step."""
    lines = ["for step in range(12 * BLOCK + 1):", "END_OF(step - 1) if step else None", *switches]
    return f"for step in range({count}):", f"\n{' ' * indent}".join(lines)


def autocast(target: str, call: str, line: str) -> tuple[str, str]:
    """The edit of a line that calls the model: in 16 bits where the change is on, its result in float32."""
    inside = f"with torch.autocast('cuda', dtype=torch.bfloat16, enabled=ON(step)): {target} = {call}"
    return line, f"{inside}\n    {target} = {target}.float()\n    {line.replace(call, target)}"


def fused(optimizer: str) -> tuple[tuple[str, str], str]:
    """The edit of an optimizer into one without and one with its fused form, and the switch."""
    both = f"[{optimizer}, {optimizer[:-1]}, fused=True)]"
    return (f"opt = {optimizer}", f"opts = {both}"), "opt = opts[ON(step)]"


TF32 = "torch.backends.cuda.matmul.allow_tf32 = ON(step)"
ADAMW_UNET, SWITCH = fused("torch.optim.AdamW(model.parameters(), lr=1e-3)")
ADAM_LM, _ = fused("torch.optim.Adam(model.parameters(), lr=1e-3)")
ADAMW_CTC, _ = fused("torch.optim.AdamW(model.parameters(), lr=1e-4)")
ADAGRAD, _ = fused("torch.optim.Adagrad(model.parameters(), lr=0.01)")
ADAM_GAT, _ = fused("torch.optim.Adam(model.parameters(), lr=5e-3)")
# By script and change.
TRIALS = {
    ("moe_loop", "fused"): Trial([
        ("opt = torch.optim.AdamW(net.parameters(), lr=1e-4)",
         "opts = [torch.optim.AdamW(net.parameters(), lr=1e-4, fused=f) for f in (None, True)]"),
        ("for _ in range(30):", "for n in range(168):\n    opt = opts[ON(n)]"),
        ("opt.zero_grad()", "opt.zero_grad(); END_OF(n)"),
    ], block=12),
    ("lora_lightning", "tf32"): Trial([
        ("(400, 512)", "(1600, 512)"), ("max_steps=40", "max_steps=169"),
        ("        loss = self.m(",
         "        END_OF(i - 1) if i else 0; torch.backends.cuda.matmul.allow_tf32 = ON(i); loss = self.m("),
    ], block=12),
    ("encode_list", "bf16"): Trial([
        ("for i in range(0, 1600, 32):", "for k, i in enumerate([*range(0, 1600, 32)] * 10):"),
        (MODEL_CALL,
         f"\n        with torch.autocast('cuda', dtype=torch.bfloat16, enabled=ON(k)): {MODEL_CALL}"),
        (".cpu().numpy())", ".float().cpu().numpy()); END_OF(k)"),
    ], block=50, lead_in=10),
    ("t5_generate", "compile"): Trial([
        (".half().eval()", ".half().eval(); models = [m, torch.compile(m)]"),
        ("for _ in range(3):", "for n in range(36):"),
        ("        m.generate(", "        models[ON(n)].generate("),
        ("do_sample=False)", "do_sample=False); END_OF(n)"),
    ], block=3, lead_in=1, steps=40),
    ("unet3d", "bf16"): Trial([
        looped(40), autocast("logits", "model(volume)", "loss = F.cross_entropy(model(volume), target)"),
    ]),
    ("unet3d", "fused"): Trial([looped(40, SWITCH), ADAMW_UNET]),
    ("lstm_lm", "tf32"): Trial([looped(50, TF32)]),
    ("lstm_lm", "bf16"): Trial([
        looped(50), ("    logits, state = model(x, state)",
         "    with torch.autocast('cuda', dtype=torch.bfloat16, enabled=ON(step)):\n"
         "        logits, state = model(x, state)\n"
         "    logits, state = logits.float(), [s.float() for s in state]"),
    ]),
    ("lstm_lm", "fused"): Trial([looped(50, SWITCH), ADAM_LM]),
    ("dlrm", "tf32"): Trial([looped(60, TF32)]),
    ("ddpm_sample", "bf16"): Trial([
        looped(100, indent=8), ("    t = 99 - step", "    t = 99 - step % 100"),
        ("    noise = model(",
         "    with torch.autocast('cuda', dtype=torch.bfloat16, enabled=ON(step)): noise = model("),
    ]),
    ("ddpm_sample", "tf32"): Trial([
        looped(100, TF32, indent=8), ("    t = 99 - step", "    t = 99 - step % 100"),
    ]),
    ("ddpm_sample", "channels_last"): Trial([
        looped(100, indent=8), ("    t = 99 - step", "    t = 99 - step % 100"),
        ("model = UNet().cuda().eval()",
         "import copy\nmodel = UNet().cuda().eval()\n"
         "models = [model, copy.deepcopy(model).to(memory_format=torch.channels_last)]"),
        ("    noise = model(images,", "    noise = models[ON(step)](images.contiguous(memory_format="
         "torch.channels_last if ON(step) else torch.contiguous_format),"),
    ]),
    ("speech_ctc", "tf32"): Trial([looped(50, TF32)]),
    ("speech_ctc", "bf16"): Trial([
        looped(50), ("    out = model(wave)",
         "    with torch.autocast('cuda', dtype=torch.bfloat16, enabled=ON(step)): out = model(wave)\n"
         "    out = out.float()"),
    ]),
    ("speech_ctc", "fused"): Trial([looped(50, SWITCH), ADAMW_CTC]),
    ("lstm_lm", "advice.host_sync"): Trial([
        looped(50), ("data = torch.randint(0, VOCAB, (4000, 64))",
         "data = torch.randint(0, VOCAB, (4000, 64)).pin_memory()"),
        ("    x, y = data[i : i + 70].cuda(), data[i + 1 : i + 71].cuda()",
         "    x, y = data[i:i + 70], data[i + 1:i + 71]\n"
         "    x, y = (x, y) if ON(step) else (x.clone(), y.clone())\n"
         "    x, y = x.cuda(non_blocking=ON(step)), y.cuda(non_blocking=ON(step))"),
    ]),
    ("dlrm", "fused"): Trial([looped(60, SWITCH), ADAGRAD]),
    ("dlrm", "advice.host_work"): Trial([
        ("for step in range(60):", "ready = torch.rand(8192, 13), torch.randint(0, 100000, (8192, 26, 3)), "
         "torch.randint(0, 2, (8192,)).float()\nfor step in range(12 * BLOCK + 1):\n"
         "    END_OF(step - 1) if step else None"),
        ("    dense = torch.rand(8192, 13)\n    sparse = torch.randint(0, 100000, (8192, 26, 3))\n"
         "    clicked = torch.randint(0, 2, (8192,)).float()\n",
         "    dense, sparse, clicked = ready if ON(step) else (torch.rand(8192, 13), "
         "torch.randint(0, 100000, (8192, 26, 3)), torch.randint(0, 2, (8192,)).float())\n"),
    ]),
    ("speech_ctc", "advice.host_work"): Trial([
        ("for step in range(50):", "ready = torch.randn(16, 160000)\nfor step in range(12 * BLOCK + 1):\n"
         "    END_OF(step - 1) if step else None"),
        ("wave = torch.randn(16, 160000).cuda()",
         "wave = (ready if ON(step) else torch.randn(16, 160000)).cuda()"),
    ]),
    ("graph_attention", "advice.host_sync"): Trial([
        looped(50), ("    accuracy = (out.argmax(1) == y).float().mean().item()",
         "    accuracy = (out.argmax(1) == y).float().mean()\n"
         "    accuracy = accuracy if ON(step) else accuracy.item()"),
    ]),
    ("point_cloud", "tf32"): Trial([looped(100, TF32)]),
    ("recommender_bags", "tf32"): Trial([looped(100, TF32)]),
    ("packed_gru", "fused"): Trial([
        ("opt = torch.optim.AdamW(net.parameters(), lr=1e-3)",
         "opts = [torch.optim.AdamW(net.parameters(), lr=1e-3, fused=f) for f in (None, True)]"),
        ("for row in lengths.tolist():", "for n, row in enumerate(lengths.tolist()):\n    opt = opts[ON(n)]"),
        ("for n in row]", "for k in row]"), ("torch.randn(n, 80)", "torch.randn(k, 80)"),
        (".sum().item()", ".sum().item(); END_OF(n)"),
    ], block=8),
    ("graph_attention", "tf32"): Trial([looped(50, TF32)]),
    ("graph_attention", "bf16"): Trial([
        looped(50), autocast("out", "model(x, edges)", "out = model(x, edges)"),
    ]),
    ("graph_attention", "fused"): Trial([looped(50, SWITCH), ADAM_GAT]),
}  # fmt: skip


def blocks_ms(name: str, trial: Trial, folder: Path) -> list[tuple[int, float]]:
    """Whether a block had the change, and milliseconds of one of its steps, in their order.

    Raises:
        SystemExit: An edit does not apply, or the script fails.
    """
    text = (folder / f"{name}.py").read_text(encoding="utf-8")
    for old, new in trial.edits:
        if old not in text:
            raise SystemExit(f"{name} has no {old!r}")
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "script.py"
        path.write_text(CLOCK.format(block=trial.block, lead_in=trial.lead_in) + text + END, encoding="utf-8")
        ran = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    lines = [line for line in ran.stdout.splitlines() if line.startswith("BLOCKS ")]
    if not lines:
        raise SystemExit(f"{name} failed: {ran.stderr[-400:]}")
    return [(int(on), 1000 * s / trial.steps) for on, s in json.loads(lines[0].removeprefix("BLOCKS "))]


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


# What the advice of a code is called above; of others nothing is measured.
CHANGES = {
    "advice.tf32_off": "tf32", "advice.reduced_precision": "bf16", "advice.foreach_optimizer": "fused",
    "advice.per_tensor_optimizer": "fused", "advice.layout_conversion": "channels_last",
    "advice.unfused_pointwise": "compile", "advice.layout_copies": "compile",
    "advice.launch_bound": "compile",
}  # fmt: skip
FIRST_SCREEN = 3


def recorded(path: Path) -> tuple[float, list[Shown]]:
    """Milliseconds of a step without the profiler, and the changes of the first screen.

    Raises:
        SystemExit: The script cannot be recorded.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "opscope", "run", "--output-dir", f"{scratch}/out", str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if ran.returncode:
            raise SystemExit(f"{path.stem} was not recorded: {ran.stderr[-400:]}")
        document = json.loads((Path(scratch) / "out/analysis.json").read_text(encoding="utf-8"))
    shown: dict[str, Shown] = {}
    for one in document["findings"]:
        gain_ns, interval_ns = one["estimated_gain_ns_per_step"], one["gain_interval_ns_per_step"]
        if one["code"].startswith("advice.") and gain_ns and len(shown) < FIRST_SCREEN:
            change = CHANGES.get(one["code"], one["code"])
            interval = (interval_ns[0] / 1e6, interval_ns[1] / 1e6) if interval_ns else None
            is_unknown = bool(one["applicability"]["blocked_by"])
            shown.setdefault(change, Shown(change, gain_ns / 1e6, interval, is_unknown))
    return (document["step"]["unrecorded_ns"] or {"median": 0})["median"] / 1e6, list(shown.values())


def main(result: Path, folders: Sequence[Path]) -> None:
    """Record each script of the folders, time every change declared for it, judge, and write after each."""
    found: list[dict[str, object]] = []
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        trials = {change: trial for (name, change), trial in TRIALS.items() if name == path.stem}
        row: dict[str, object] = {"program": path.stem, "changes": {}}
        gains: dict[str, float | None] = {}
        for change, trial in trials.items():
            try:
                measured = compared(blocks_ms(path.stem, trial, path.parent))
                gains[change] = float(measured["gain_ms"])  # type: ignore[arg-type]
            except (SystemExit, statistics.StatisticsError, subprocess.TimeoutExpired) as error:
                measured, gains[change] = {"error": str(error)[-300:]}, None  # type: ignore[dict-item]
            row["changes"][change] = measured  # type: ignore[index]
        try:
            step_ms, shown = recorded(path)
            row |= {
                "step_ms": step_ms,
                "shown": [vars(one) | {"verdict": verdict(one, gains)} for one in shown],
                "missed": misses(shown, gains, step_ms),
            }
        except (SystemExit, subprocess.TimeoutExpired) as error:
            row["error"] = str(error)[-300:]
        found.append(row)
        print(json.dumps(row), flush=True)
        result.write_text(json.dumps({"programs": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(one) for one in sys.argv[2:]])
