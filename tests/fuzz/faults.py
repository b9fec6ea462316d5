"""Signals at random moments of verbs that write; `python tests/fuzz/faults.py --moments 200`.

A verb runs in a session of its own with an empty folder for temporary files, and gets a signal some time
after its start. Then every file that it writes is absent or whole, no process of it is left and, unless it
was killed, the temporary folder is empty. A moment is a number, so what fails is found again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import zstandard

import opscope

sys.path.insert(0, str(Path(__file__).parents[1]))
from fakes import TraceBuilder

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")
_END_S = 10.0
_TRACES = Path(__file__).parents[2] / "examples/traces"
_TRAINING = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(1_000_000_000):
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
"""
_FUNCTIONS = """
import torch
def one(x=None): return torch.ones(64, 64) @ torch.ones(64, 64)
def two(x=None): return torch.full((64, 64), 64.0)
"""

# The words of each verb, run in a folder that holds what they name; what it writes goes to `out`.
VERBS = {
    "analyze": "analyze trace.json.gz --save out/saved.opscope -o out/page.html -o out/report.md"
    " --export-trace out/exported.json --stacks out/stacks.json",
    "ranks": "analyze ranks --workers 2 -o out/report.md --save out/saved.opscope",
    "compare": "compare trace.json.gz trace.json.gz --output out/report.md --output out/page.html",
    "bench": "bench functions.py:one functions.py:two --time-budget 0.5 --save out/result.json"
    " -o out/report.md -o out/page.html",
    "profile": "profile bert --param layers=1 hidden=64 --batch-sizes 1 2 --seq-lens 16 --output-dir out",
    "run": "run --stop --output-dir out training.py",
    "try": "try --budget 20s --only fused_optimizer -o out/trial.json -o out/report.md training.py",
}


def _prepare(folder: Path) -> None:
    for name in ("out", "tmp", "ranks"):
        (folder / name).mkdir()
    shutil.copyfile(_TRACES / "bert_compile_bf16.json.gz", folder / "trace.json.gz")
    for rank in range(10):
        builder = TraceBuilder(distributedInfo={"backend": "nccl", "rank": rank, "world_size": 10})
        for number in range(3):
            builder.step(number, 100.0 * number, 90)
            builder.operator("aten::mm", 100.0 * number + 5, 30).launch(100.0 * number + 10, 4)
            builder.kernel("gemm", 100.0 * number + 20, 30)
        (folder / f"ranks/rank{rank}.json").write_text(builder.text())
    (folder / "training.py").write_text(_TRAINING)
    (folder / "functions.py").write_text(_FUNCTIONS)


def interrupted(verb: str, name: str, after_s: float, folder: Path) -> list[str]:
    """What is wrong after a verb got a signal so many seconds after its start."""
    _prepare(folder)
    number = getattr(signal, name)
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "XDG_CACHE_HOME": str(folder / "cache")}
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "opscope", *VERBS[verb].split()],
            cwd=folder,
            env=environment,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        # As a terminal does it: Ctrl-C and its end reach all processes, the others one.
        (os.killpg if name in {"SIGINT", "SIGHUP"} else os.kill)(process.pid, number)
    try:
        code = process.wait(_END_S)
    except subprocess.TimeoutExpired:
        code = None
    wrong = list(_wrong(folder, code, number, process.pid, is_killed=name == "SIGKILL"))
    for pid in _left_of(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    return wrong


def _wrong(folder: Path, code: int | None, number: int, session: int, *, is_killed: bool) -> Iterator[str]:
    text = (folder / "said.txt").read_text(errors="replace")
    # Before the first line of `__main__` the interpreter says what interrupted it, and has its own code.
    _, traceback, where = text.partition("Traceback")
    is_ours = not traceback or "__main__.py" in where
    if code is None:
        yield f"no end {_END_S:.0f} s after the signal"
    elif is_ours and code not in {0, 128 + number, -number}:
        yield f"exit code {code}"
    if traceback and is_ours:
        yield "a traceback"
    deadline = time.monotonic() + _END_S
    while (left := list(_left_of(session))) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        yield f"{len(left)} processes are left"
    # torch keeps a cache of its own there.
    for file in [*folder.glob("out/**/*"), *folder.glob("tmp/opscope-*"), *folder.glob("cache/**/*")]:
        is_scratch = file.is_relative_to(folder / "tmp") or ".partial" in file.name or file.suffix == ".lock"
        if is_scratch and not is_killed:
            yield f"{file.relative_to(folder)} is left"
        elif not is_scratch and file.is_file() and (error := _error_of(file)):
            yield f"{file.relative_to(folder)} is not whole: {error}"


def _left_of(session: int) -> Iterator[int]:
    """Processes of a session that still run."""
    for entry in Path("/proc").iterdir():
        try:
            state, _, _, its_session = (entry / "stat").read_text().rpartition(") ")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if its_session == str(session) and state not in "ZX":
            yield int(entry.name)


def _error_of(file: Path) -> str | None:
    try:
        if file.suffix == ".zst":
            zstandard.decompress(file.read_bytes())
        elif file.suffix in {".opscope", ".gz"}:
            opscope.load(file).close()
        elif file.suffix == ".json":
            if "traceEvents" in json.loads(file.read_text()):
                opscope.load(file).close()
        elif not file.read_text().endswith("</html>" if file.suffix == ".html" else "\n"):
            return "its end is missing"
    except Exception as error:  # noqa: BLE001 - whatever it is, the file is not whole
        return f"{type(error).__name__}: {error}"
    return None


def main() -> int:
    """Interrupt verbs at random moments and tell what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first moment")
    parser.add_argument("--moments", type=int, default=20, help="of each verb")
    parser.add_argument("--verbs", nargs="*", default=list(VERBS), choices=VERBS)
    parser.add_argument("--signals", nargs="*", default=list(SIGNALS), choices=SIGNALS)
    options = parser.parse_args()
    failed = 0
    for verb in options.verbs:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            wrong = interrupted(verb, "SIGKILL", 600.0, Path(folder))
            whole_s = time.monotonic() - began
            said = (Path(folder) / "said.txt").read_text()
        if wrong:
            print(f"{verb} undisturbed: {'; '.join(wrong)}\n{said[-1500:]}", flush=True)
            failed += 1
            continue
        for number in range(options.first, options.first + options.moments):
            random_ = random.Random(f"{options.seed}-{number}")
            name, after_s = random_.choice(options.signals), random_.uniform(0, whole_s)
            with tempfile.TemporaryDirectory() as folder:
                wrong = interrupted(verb, name, after_s, Path(folder))
                said = (Path(folder) / "said.txt").read_text(errors="replace")
            if wrong:
                failed += 1
                place = f"{verb} {options.seed}-{number} {name} after {after_s:.2f} of {whole_s:.2f} s"
                print(f"{place}: {'; '.join(wrong)}\n{said[-1500:]}", flush=True)
        print(f"{verb}: {options.moments} moments", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
