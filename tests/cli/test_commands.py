"""What verbs print of small recordings and results: exit code, output and errors of each command, as text.

`--update-golden` writes what is expected: read the difference before you commit it.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from fakes import TraceBuilder

from .conftest import saved, write_trace

EXPECTED = Path(__file__).parent / "expected"
COMMANDS = {
    "analyze": """
        analyze small.opscope --section first
        analyze small.opscope --section kernels top
        analyze small.opscope --section nonsense
        analyze small.opscope --by range:Step --section range
        analyze small.opscope --by range:nothing --section first
        analyze small.opscope --by range:(
        analyze small.opscope --by color
        analyze small.opscope --capture small.json
        analyze small.json --capture absent.json
        analyze small.json --memory-limit nonsense
        analyze small.json --workers nobody
        """,
    "compare": """
        compare fast.json slow.json
        compare fast.opscope slow.opscope --fail-on slower --section first
        compare fast.opscope slow.opscope --fail-on faster --section first
        compare fast.opscope slow.opscope --fail-on different --section first
        compare fast.opscope slow.opscope --fail-on slower --threshold 0.6 --section first
        compare slow.opscope fast.opscope --fail-on slower --section first
        compare slow.opscope fast.opscope --fail-on faster --section first
        compare fast.opscope fast.opscope --fail-on different
        compare fast.opscope short.opscope --section first
        compare fast.opscope short.opscope --fail-on slower --section first
        compare short.opscope short.opscope --fail-on slower --section first
        compare 1000.json 1300.json --fail-on slower
        compare 1000.json 1000.json --fail-on different
        compare sweep1000.json sweep1300.json --fail-on slower
        compare 1000.json sweep1000.json --fail-on different
        compare 1000.json fast.opscope
        compare fast.opscope none.json
        """,
    "devices": """
        devices
        devices rtx 4090
        devices RTX 4070
        devices sm_90
        devices 8.7
        devices h210
        devices --save x.json
        devices h200 --measure
        """,
    "explain": """
        explain aten::gelu --torch-version 2.5.1 --section first
        explain aten::gelu --torch-version 9.9
        explain aten::gelu --torch-version newest
        explain aten::gelu --torch-version 2.12.0 --section first
        explain aten::gelu --torch-version 2.11.0a0+nv25.01 --section first
        explain aten::gelu --torch-version 2.14.1+rocm7.0 --section first
        explain aten::gelu --torch-version 2.14.1+cpu --section first
        explain aten::gelu --torch-version 2.6.0
        explain aten::gelo --torch-version 2.6.0
        explain aten::gelu --trace small.opscope --torch-version 2.6.0
        explain aten::_softmax --trace small.opscope --section trace
        """,
    "flamegraph": """
        flamegraph small.opscope
        flamegraph small.opscope --step 2 --weight cpu
        flamegraph small.opscope --by python
        """,
    "sql": """
        sql small.opscope "SELECT name, parent_id, self_device_ns FROM operators ORDER BY 3 DESC"
        sql small.opscope "SELECT name FROM operators WHERE false"
        sql small.opscope "SELECT * FROM range(250)" --top 3
        sql small.opscope "SELECT name, overload FROM operators ORDER BY start_ns" --csv
        sql small.opscope "SELECT name, 'some text of several words' AS text FROM operators LIMIT 1" --json
        sql small.opscope "SELECT 1" -o x.txt
        sql small.opscope "SELECT 1; SELECT 2"
        sql small.opscope ""
        """,
    "stats": """
        stats small.opscope
        stats small.opscope --report cuda_api_sum:base cuda_gpu_mem_size_sum
        stats small.opscope --report gpu
        """,
}


def steps(duration: float, count: int = 8) -> TraceBuilder:
    builder = TraceBuilder()
    for step in range(count):
        start = 10_000 * step
        builder.step(step, start, 5_000).operator("aten::mm", start, 50).launch(start + 5)
        builder.kernel("gemm", start + 100, duration + step / 1000)
    return builder


def result(median_ns: float) -> dict[str, Any]:
    """A saved benchmark."""
    samples = [median_ns * (1 + 0.001 * (index % 5)) for index in range(30)]
    return {
        "schema_version": 1, "suite": "gelu", "shape": [8], "dtype": "float32", "device": "cpu",
        "reference": "torch", "clock": "wall", "cache_state": "uncontrolled", "options": {},
        "environment": {"python": "3.12", "platform": "Linux", "opscope": "0"}, "created": "",
        "rows": [{"name": "torch", "status": "ok", "samples_ns": samples}],
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings and results, as files and as Sessions that name them by relative paths."""
    folder = tmp_path_factory.mktemp("commands")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        saved(write_trace(Path("small.json")))
        for name, builder in {"slow": steps(150), "fast": steps(100), "short": steps(200, count=3)}.items():
            saved(builder.write(Path(f"{name}.json")))
    for ns in (1000, 1300):
        (folder / f"{ns}.json").write_text(json.dumps(result(ns)))
        sweep = {"schema_version": 1, "suite": "gelu", "parameters": {"n": [1]}, "points": [result(ns)]}
        (folder / f"sweep{ns}.json").write_text(json.dumps(sweep))
    return folder


@pytest.fixture
def place(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a copy of the files, shown 120 columns wide."""
    place = tmp_path / "place"
    shutil.copytree(folder, place)
    monkeypatch.chdir(place)
    for name, value in {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return place


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("verb", COMMANDS)
def test_verbs_print_what_they_always_printed(opscope, verb: str, pytestconfig: pytest.Config) -> None:
    parts = []
    for command in filter(None, map(str.strip, COMMANDS[verb].splitlines())):
        outcome = opscope(*shlex.split(command))
        code = f"exit {outcome.code}\n" if outcome.code else ""
        parts.append(f"$ opscope {command}\n{code}{outcome.err}{outcome.out}")
    text = "\n".join("\n".join(map(str.rstrip, part.splitlines())) for part in parts) + "\n"
    expectation = EXPECTED / f"{verb}.txt"
    if pytestconfig.getoption("--update-golden"):
        EXPECTED.mkdir(exist_ok=True)
        expectation.write_text(text, encoding="utf-8")
    assert text.splitlines() == expectation.read_text(encoding="utf-8").splitlines()
