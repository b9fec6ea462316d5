"""What a step gains by another version of a recorded call."""

import runpy
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from fakes import H200, TraceBuilder
from opscope import example_trace, load
from opscope.analysis.summary import Summary
from opscope.errors import InputError
from opscope.extraction.alone_calls import alone_calls, calls_of_file, chosen_call, extracted, step_gain
from opscope.extraction.starts import StartKind
from opscope.model.sidecar import kernels_folder
from opscope.provenance.generated_code import source_hash


def test_a_step_that_the_device_decides_loses_what_the_kernels_lose(tmp_path):
    with load(example_trace()) as session:
        summary = Summary(session)
        calls = alone_calls(session, summary.efficiency)
        one = chosen_call(calls, "linear 8×128×3072", session)
        written = extracted(1, one, start=StartKind.ATEN).file
        file = tmp_path / "call.py"
        file.write_text(written.text.replace("return reference(input, weight, bias)", "return None"))
        assert calls_of_file(calls, file) == (one,)
        half = step_gain(summary, [one], "call", 0.5, (0.45, 0.55))
        slower = step_gain(summary, [one], "call", 2.0, None)
        assert half is not None
        assert slower is not None
    steps = len(summary.steps)
    assert half.calls == len(one.operator_ids) / steps
    assert half.gain.ns == pytest.approx(0.5 * one.device_ns / steps, rel=0.02)
    assert half.gain.low_ns == pytest.approx(0.45 * one.device_ns / steps, rel=0.02)
    assert slower.gain.ns == pytest.approx(-one.device_ns / steps, rel=0.02)
    assert half.step_ns == slower.step_ns > one.device_ns / steps


def test_a_number_that_was_not_recorded_is_the_users_to_write(tmp_path):
    trace, file = tmp_path / "trace.json", tmp_path / "call.py"
    built = TraceBuilder()
    for at, name, number in ((0, "aten::mul", ""), (100, "aten::pow", "3")):
        given = {
            "Input Dims": [[32], []],
            "Input type": ["float", "double" if not number else "Scalar"],
            "Concrete Inputs": ["", number],
        }
        built.operator(name, at, 10, **given).launch(at + 2).kernel(name, at + 20, 5)
    built.write(trace)
    with load(trace) as session:
        calls = alone_calls(session, Summary(session).efficiency)
        open_one, fixed = (chosen_call(calls, name, session) for name in ("mul", "pow"))
        for one, before, after in ((open_one, "0.5)", "-1.702)"), (fixed, "3)\n", "2)\n")):
            written = extracted(1, one, start=StartKind.ATEN).file
            assert before in written.text
            file.write_text(written.text.replace(before, after))
            if one is open_one:
                assert calls_of_file(calls, file) == (one,)
                file.write_text(file.read_text().replace("((32,)", "((33,)"))
            with pytest.raises(InputError, match="the recording has no call"):
                calls_of_file(calls, file)


GENERATED = Path(__file__).with_name("generated_kernel.txt").read_text(encoding="utf-8")
CALLED = Path(__file__).with_name("generated_call.txt").read_text(encoding="utf-8")


def test_a_generated_kernel_is_written_with_its_source_and_what_it_was_given(tmp_path, monkeypatch):
    name = source_hash(GENERATED)
    given = {
        "Input Dims": [[32, 32], [32], [32, 32], []],
        "Input type": ["float", "c10::BFloat16", "float", "Scalar"],
        "Input Strides": [[32, 1], [1], [1, 32], []],
        "Concrete Inputs": ["", "", "", "1024"],
    }
    stated = {"kernel_backend": "triton", "kernel_file": f"/gone/{name}.py", "kernel_hash": name}
    built = TraceBuilder().operator("triton_poi_fused_add_0", 0, 10, **given, **stated)
    trace = tmp_path / "trace.json"
    built.launch(2).kernel("triton_poi_fused_add_0", 20, 5).launch(40).kernel("mine", 50, 5).write(trace)
    with load(trace) as session:
        calls = alone_calls(session, Summary(session).efficiency)
        with pytest.raises(InputError, match="the kernel 'mine' was launched with"):
            chosen_call(calls, "mine", session)
        (one,) = calls
        missing = extracted(1, one).file
        assert isinstance(missing, InputError)
        assert "is not at hand. Record with opscope run" in str(missing)
        kernels_folder(trace).mkdir()
        (kernels_folder(trace) / f"{name}.py").write_text(GENERATED)
        found = extracted(1, one)
        assert found.name == "01_triton_poi_fused_add_0.py"
        file = tmp_path / "call.py"
        file.write_text(found.file.text)
        assert calls_of_file(calls, file) == (one,)
    # What needs a GPU, or takes seconds to import.
    for module in ("torch", "torch._inductor", "torch._inductor.runtime", "triton", "triton.language"):
        monkeypatch.setitem(sys.modules, module, MagicMock())
    names = runpy.run_path(str(file))
    assert names["triton_helpers"].set_driver_to_gpu.called
    assert names["make_inputs"]("cuda", 0) == (names["torch"].randn(), names["torch"].randn())
    assert GENERATED.strip() in found.file.text
    assert CALLED in found.file.text


def test_elementwise_calls_in_a_row_are_one_besides(tmp_path):
    """Where the host decides, two of three launches go by fusing, and the time of their operators."""
    built = TraceBuilder(deviceProperties=[H200])
    arguments = {
        "mul": ([[512, 64], [64]], ["float", "float"], [[64, 1], [1]], ["", ""]),
        "add": ([[512, 64], [512, 64], []], ["float", "float", "Scalar"], [[64, 1], [64, 1], []],
                ["", "", "1"]),
        "relu": ([[512, 64]], ["float"], [[64, 1]], [""]),
        "mm": ([[512, 64], [64, 64]], ["float", "float"], [[64, 1], [64, 1]], ["", ""]),
    }  # fmt: skip
    keys = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    for step in range(4):
        began = 1000 * step
        built.step(step, began, 1000)
        for place, (name, given) in enumerate(arguments.items()):
            built.operator(f"aten::{name}", began + 200 * place, 190, **dict(zip(keys, given, strict=True)))
            built.launch(began + 200 * place + 100).kernel(name, began + 200 * place + 110, 20)
    trace = tmp_path / "trace.json"
    built.write(trace)
    with load(trace) as session:
        summary = Summary(session)
        calls = alone_calls(session, summary.efficiency)
        chain = chosen_call(calls, "→", session)
        assert chain.name == "aten::mul → add → relu"
        assert (chain.times, chain.device_ns) == (4, 4 * 60_000)
        assert sum(bool(one.then) for one in calls) == 1
        found = extracted(3, chain)
        assert found.name == "03_mul_add_relu.py"
        assert "    r1 = torch.ops.aten.mul(self, other)\n" in found.file.text
        assert "tl.store(result_ptr + i, tl.where(r2 > 0, r2, 0), mask=inside)" in found.file.text
        fused = step_gain(summary, [chain], "call", 0.5, None)
        alone = step_gain(summary, [chosen_call(calls, "relu 512", session)], "call", 0.5, None)
    assert fused.calls == 1
    assert alone.gain.ns < 20_000
    assert fused.gain.ns > 250_000  # of the two operators' 380 µs what launching is not said to take


def test_an_operator_of_another_library_is_written_with_what_registers_it(tmp_path):
    given = {"Input Dims": [[4, 8], []], "Input type": ["float", "Scalar"], "Concrete Inputs": ["", "2."]}
    built = TraceBuilder().operator("mine::scale", 0, 10, **given).launch(2).kernel("scale", 20, 5)
    with load(built.write(tmp_path / "trace.json")) as session:
        (one,) = alone_calls(session, Summary(session).efficiency)
        refused = extracted(1, one).file
        assert isinstance(refused, InputError)
        assert "name the module that registers it, --import MODULE" in str(refused)
        written = extracted(1, one, module="my.ops")
        assert written.name == "01_scale.py"
        assert "import my.ops  # registers mine::scale" in written.file.text
        assert "    result = torch.ops.mine.scale(x1, 2.0)\n    return result, x1\n" in written.file.text


def test_a_collective_is_written_for_as_many_processes(tmp_path):
    given = {
        "Input Dims": [[[64]], []], "Input type": ["TensorList", ""], "Collective name": "allreduce",
        "dtype": "BFloat16", "In msg nelems": 64, "Out msg nelems": 64, "Group size": 4,
    }  # fmt: skip
    built = TraceBuilder().operator("record_param_comms", 0, 10, **given).launch(2).kernel("nccl", 20, 5)
    with load(built.write(tmp_path / "trace.json")) as session:
        (one,) = alone_calls(session, Summary(session).efficiency)
        assert one.worth_ns == 0
        written = extracted(1, one)
        assert written.name == "01_allreduce.py"
        assert "torchrun --nproc-per-node 4 01_allreduce.py" in written.file.text
        assert "    tensor = torch.randn((64,), device=device, dtype=torch.bfloat16)" in written.file.text
        assert "    dist.all_reduce(tensor)\n    return tensor\n" in written.file.text


def test_a_call_is_found_by_its_module_and_its_line(tmp_path):
    given = {"Input Dims": [[4, 8]], "Input type": ["float"]}
    built = TraceBuilder()
    built.frame("train.py(7): main", 0, 500)
    for at, module, name in ((100, "Up_0", "aten::relu"), (200, "Down_0", "aten::tanh")):
        built.frame(f"nn.Module: {module}", at, 90, module=at)
        built.operator(name, at + 10, 20, **given).launch(at + 12).kernel(name, at + 40, 5)
    with load(built.write(tmp_path / "trace.json")) as session:
        calls = alone_calls(session, Summary(session).efficiency)
        assert chosen_call(calls, "down_0", session).name == "aten::tanh"
        assert chosen_call(calls, "relu train.py:7", session).name == "aten::relu"
        with pytest.raises(InputError, match="its modules or its lines"):
            chosen_call(calls, "train.py:8", session)
