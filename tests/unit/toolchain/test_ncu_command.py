"""Commands of ncu, and what is said when running one fails."""

import re
import sys
import time
from pathlib import Path

import pytest

from case_tables import cases
from opscope.errors import CaptureError, DependencyError
from opscope.signals import ending_signals_raise
from opscope.toolchain import ncu_command
from opscope.toolchain.ncu_report import QUANTITIES, SECTIONS, metrics_to_collect


@cases("name")
def test_a_function_with_a_functor_is_found_however_it_is_spelled(name):
    whole = ("vectorized_elementwise_kernel", "GeluCUDAKernelImpl")
    parts = ("elementwise_kernel", None), (whole[0], "Gelu")
    found = [ncu_command.filter_of_functions([one]).covers(name) for one in (whole, *parts)]
    assert found == [True, False, False]


def test_functions_and_mangled_names_are_alternatives_matched_whole():
    both = ncu_command.filter_of_functions([("a", None), ("b", "c"), ("a", None)])
    assert both == ncu_command.KernelFilter(r"\ba\b|\bb\b.*\bc\b")
    found = ncu_command.filter_of_mangled_names(["_Z1fv", "triton_poi.0$x-y"])
    assert found.arguments() == [
        "--kernel-name-base", "mangled", "--kernel-name", r"regex:^(_Z1fv|triton_poi\.0\$x-y)$",
    ]  # fmt: skip
    assert found.covers("triton_poi.0$x-y")
    assert not found.covers("_Z1fvi")


def test_the_command_of_a_collection_with_a_filter_and_without():
    wanted = {"sections": ("Occupancy",), "metrics": ("a.sum", "b.sum"), "options": ("--set=full",)}
    collection = ncu_command.Collection(ncu_command.KernelFilter("gemm"), 3, 2, **wanted)
    program, output = ["python", "x.py", "--lr", "1"], Path("o.ncu-rep")
    command = ncu_command.ncu_command(collection, program, output=output, log_file=Path("l"))
    assert " ".join(command) == (
        "ncu --target-processes all --clock-control none "
        "--kernel-name-base demangled --kernel-name regex:gemm --launch-skip 3 --launch-count 2 "
        "--section Occupancy --metrics a.sum,b.sum --set=full --export o.ncu-rep --force-overwrite "
        "--log-file l python x.py --lr 1"
    )
    command = ncu_command.ncu_command(ncu_command.Collection(), ["./a.out"], output=Path("o.ncu-rep"))
    assert not any(option.startswith(("--kernel", "--launch")) for option in command)
    assert command[-1] == "./a.out"


def test_chips_that_name_metrics_differently():
    def named(capability):
        return [
            name for name in metrics_to_collect(capability) if re.match("dram__bytes_.*(read|write)", name)
        ]

    assert named("9.0") == ["dram__bytes_read.sum", "dram__bytes_write.sum"]
    assert named("12.0") == ["dram__bytes_op_read.sum", "dram__bytes_op_write.sum"]
    assert named("12.1") == []


def test_every_wanted_quantity_is_collected_by_a_metric_or_a_section():
    metrics = set(metrics_to_collect())
    for quantity in QUANTITIES:
        entry = QUANTITIES[quantity]
        assert entry.section in SECTIONS or metrics & set(entry.names), quantity


def executable(folder, name, body):
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!{sys.executable}\n{body}")
    file.chmod(0o755)
    return file


def run_of(log, *, exit_code=1, target_code=0):
    return ncu_command.NcuRun(exit_code, target_code, log)


def test_ncu_is_found_on_path_before_other_places_and_missed_with_what_to_do(tmp_path, monkeypatch):
    elsewhere = []
    monkeypatch.setattr(
        "opscope.toolchain.ncu_command.find_cuda_tool", lambda name: next(iter(elsewhere), None)
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(DependencyError, match=r"ncu .* is not installed.*CUDA toolkit.*opscope analyze"):
        ncu_command.find_ncu()
    elsewhere.append("/opt/ncu")
    assert ncu_command.find_ncu() == "/opt/ncu"
    found = executable(tmp_path / "bin", "ncu", "")
    assert ncu_command.find_ncu() == str(found)


def test_the_programs_code_is_what_the_log_says(tmp_path):
    log = tmp_path / "log"
    body = (
        f"open({str(log)!r}, 'w').write('==ERROR== The application returned an error code (7).\\n')\n"
        "raise SystemExit(1)"
    )
    run = ncu_command.run_ncu([str(executable(tmp_path, "ncu", body))], log)
    assert (run.exit_code, run.target_code, run.was_interrupted) == (1, 7, False)


def test_sigterm_reaches_ncu_at_once(tmp_path):
    ended = tmp_path / "ended"
    body = (
        "import os, pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(ended)!r}).touch(), sys.exit(3)))\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "time.sleep(60)"
    )
    began = time.monotonic()
    with ending_signals_raise():
        run = ncu_command.run_ncu([str(executable(tmp_path, "ncu", body))], tmp_path / "log")
    assert (run.exit_code, run.was_interrupted, ended.exists()) == (3, True, True)
    assert time.monotonic() - began < 20


def test_a_command_that_cannot_start(tmp_path):
    with pytest.raises(CaptureError, match="cannot be started"):
        ncu_command.run_ncu([str(tmp_path / "none")], tmp_path / "log")


@cases("log", "message", "target_code")
def test_what_went_wrong_is_one_error_with_a_remedy(tmp_path, log, message, target_code):
    with pytest.raises(CaptureError, match=message):
        ncu_command.check_run(run_of(log, target_code=target_code or 0), tmp_path / "none.ncu-rep")
