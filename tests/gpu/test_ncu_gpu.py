"""`opscope ncu` on a device: counters of streaming kernels against the least bytes of their calls."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

from opscope.errors import DependencyError
from opscope.toolchain.ncu_command import find_ncu

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

# Tensors of 268 MB, far more than any L2. With an argument the second step is recorded there.
SCRIPT = Path(__file__).with_name("counted.py.txt").read_text(encoding="utf-8")
TIMEOUT_S = 300
STREAMING = ("aten::_softmax", "aten::gelu", "aten::copy_")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    if find_spec("ncu_report") is None:
        pytest.skip("ncu-report is not installed")
    try:
        find_ncu()
    except DependencyError as error:
        pytest.skip(error.message)
    file = tmp_path_factory.mktemp("ncu") / "streams.py"
    file.write_text(SCRIPT)
    return file


@pytest.fixture(scope="module")
def trace(script):
    file = script.with_name("trace.json")
    subprocess.run([sys.executable, script, file], check=True, timeout=TIMEOUT_S)
    return file


def opscope_ncu(*arguments, folder):
    command = [sys.executable, "-m", "opscope", "ncu", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def counted(script, trace):
    """The JSON of the script's kernels, joined to its recording."""
    run = opscope_ncu("--trace", trace, "--json", "--", sys.executable, script, folder=script.parent)
    assert run.returncode == 0, run.stderr
    assert "done" in run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def by_operator(counted):
    return {
        one["recorded"]["call"]["operator"]: one
        for one in counted["kernels"]
        if one["recorded"]["call"] is not None
    }


def test_streaming_kernels_move_their_least_within_5_percent(by_operator):
    for operator in STREAMING:
        one = by_operator[operator]
        assert one["min_bytes"] == 2 * 4 * 8192**2
        assert one["traffic_ratio"] == pytest.approx(1.0, abs=0.05), operator


def test_layer_norm_reads_its_input_twice(counted, by_operator):
    norm = by_operator["aten::native_layer_norm"]
    assert norm["traffic_ratio"] == pytest.approx(1.44, abs=0.06)
    (finding,) = [one for one in counted["findings"] if one["code"] == "counters.extra_traffic"]
    assert finding["evidence"]["launch"] == norm["launch"]
    assert finding["evidence"]["dram_read_bytes"] == pytest.approx(2 * 4 * 8192**2, rel=0.05)


def test_everything_asked_for_was_collected(counted):
    for one in counted["kernels"]:
        assert one["not_collected"] == [], one["title"]
        assert sum(one["stall_fractions"].values()) == pytest.approx(1.0)
        assert one["device"]["name"]


def test_coalescing_tells_the_transposing_copy_from_the_others(counted, by_operator):
    gelu, copy = by_operator["aten::gelu"], by_operator["aten::copy_"]
    loads = gelu["global_loads"]
    assert loads["sectors_per_request"] == pytest.approx(loads["ideal_sectors_per_request"], rel=0.1)
    accesses = [copy["global_loads"], copy["global_stores"]]
    excess = [one["sectors_per_request"] / one["ideal_sectors_per_request"] for one in accesses]
    assert max(excess) > 2
    codes = {one["code"] for one in counted["findings"] if copy["launch"] in one["evidence"]["launches"]}
    assert "counters.scattered" in codes


def test_a_first_run_chooses_and_the_exit_code_is_the_programs(script):
    failing = script.with_name("failing.py")
    failing.write_text(SCRIPT + "raise SystemExit(7)\n")
    options = ["-o", "chosen.ncu-rep"]
    run = opscope_ncu(*options, "--", sys.executable, failing, folder=script.parent)
    assert run.returncode == 7, run.stderr
    assert run.stdout == "done\n"
    assert "kernels stand for" in run.stderr
    assert script.with_name("chosen.ncu-rep").exists()
