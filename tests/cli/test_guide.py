"""The operator guide's own commands, unchanged, on files that `opscope profile` wrote."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TOP_THREE = r"""
python3 -c "
import json
with open('profiling_results/quick/profiling_stats_bs8_seq128.json') as f:
    data = json.load(f)
    for i, op in enumerate(data['top_aten_operators'][:3], 1):
        print(f'{i}. {op[\"name\"]}')
        print(f'   时间: {op[\"cuda_time_total_ms\"]:.2f}ms')
        print(f'   文件: {op[\"potential_cuda_file\"]}')
        print()
"
"""

COMPARE = """
import json
configs = ['bs1_seq128', 'bs8_seq128', 'bs16_seq128']
for cfg in configs:
    with open(f'profiling_results/full/profiling_stats_{cfg}.json') as f:
        data = json.load(f)
        print(f"{cfg}: {data['summary']['total_cuda_time_ms']:.2f}ms")
"""

GREP = r"""cat profiling_results/*/kernel_analysis_report_*.md | grep "### 4\.[1-3]" """


@pytest.fixture
def folder(opscope, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = ("--param", "layers=1", "hidden=16", "--device", "cpu", "--active", 1)
    for name, batch_sizes in (("quick", (1, 8)), ("full", (1, 8, 16))):
        sizes = ("--batch-sizes", *batch_sizes, "--seq-lens", 128, "--skip-benchmark")
        opscope("profile", "bert", *sizes, "--output-dir", f"./profiling_results/{name}", *tiny).fine()
    # The guide says python3; here that is the Python of the tests.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8")
    return tmp_path


def shell(command, folder):
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, encoding="utf-8", check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.exhaustive(few=False)
def test_the_guides_commands_run_unchanged(folder):
    lines = shell(TOP_THREE, folder)
    assert [line[:3] for line in lines if "aten::" in line] == ["1. ", "2. ", "3. "]
    # On a CPU nothing takes GPU time, and the file is the one a GPU would run.
    assert lines[1] == "   时间: 0.00ms"
    assert any(line.startswith("   文件: aten/src/ATen/native/cuda/") for line in lines)

    done = subprocess.run(
        [sys.executable, "-c", COMPARE], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["bs1_seq128: 0.00ms", "bs8_seq128: 0.00ms", "bs16_seq128: 0.00ms"]

    found = shell(GREP, folder)
    top_three = [
        line for line in found if not line.startswith("### 4.10 ")
    ]  # the guide's pattern finds it too
    assert len(top_three) == 5 * 3
    assert all(line.startswith(f"### 4.{1 + index % 3} ") for index, line in enumerate(top_three))
