"""Which module and which line of the program device time is charged to, on hand-made traces."""

import pytest

import opscope
from fakes import TraceBuilder, sidecar
from opscope.analysis.program.places import LineKind, ModuleTotal, program_totals
from opscope.analysis.program.stacks import stack_profiles
from opscope.model.sidecar import RecordedModule, RecordedStructure, sidecar_path, write_sidecar


def launch(builder, name, start, us, **args):
    """An operator of 4 µs that launches one kernel of a duration; kernels run one after the other."""
    at = 10_000 + 100 * len(builder.events)
    builder.operator(name, start, 4, **args).launch(start + 1, thread=int(args.get("thread", 1)))
    return builder.kernel(f"{name} kernel", at, us)


def model():
    """`train.py` calls Net > (Linear, Linear) and then an optimizer; the backward pass runs on thread 2.

    The profiler's start (python id 3) makes the frames 1 and 2 known as already running.
    """
    trace = TraceBuilder()
    trace.frame("train.py(40): <module>", 0, 1000).frame("train.py(33): main", 1, 990, parent=1)
    trace.frame("torch/profiler/profiler.py(1): start", 2, 2, parent=2)
    trace.frame("train.py(10): step", 10, 900, parent=2)
    trace.frame("nn.Module: Net_0", 20, 100, parent=4, module=0)
    trace.frame("net.py(5): forward", 21, 98, parent=5)
    trace.frame("nn.Module: Linear_0", 30, 20, parent=6, module=0)
    trace.frame("torch/nn/modules/linear.py(130): forward", 31, 18, parent=7)
    launch(trace, "aten::addmm", 35, 10, **{"Sequence number": 1, "Fwd thread id": 0})
    launch(trace, "aten::relu", 60, 3)
    trace.frame("nn.Module: Linear_1", 70, 20, parent=6, module=1)
    launch(trace, "aten::addmm", 75, 20, **{"Sequence number": 2, "Fwd thread id": 0})
    trace.frame("torch/_tensor.py(576): backward", 200, 300, parent=4)
    trace.frame("<built-in method run_backward of torch._C._EngineBase object at 0x7f>", 201, 298, parent=10)
    trace.frame("torch/optim/sgd.py(100): step", 600, 100, parent=4)
    launch(trace, "aten::_foreach_add_", 650, 7)
    return trace


def backward(trace, number, start, us, *, forward, thread=1):
    """What the engine runs for one forward operator: its range, the operator, and one kernel in each."""
    args = {"Sequence number": number, "Fwd thread id": 1}
    trace.operator("autograd::engine::evaluate_function: AddmmBackward0", start, 40, thread=2, **args)
    trace.operator("AddmmBackward0", start + 1, 20, thread=2, **args)
    trace.differentiates(forward, start + 1, thread=thread)
    launch(trace, "aten::mm", start + 2, us, thread=2)
    launch(trace, "aten::sum", start + 30, 1, thread=2)


def by_path(totals):
    return {module.path: module for module in totals.modules}


def lines(totals):
    return {(line.file, line.line): line for line in totals.lines}


def test_without_a_device_modules_and_lines_have_their_operators_own_cpu_time(load):
    trace = TraceBuilder().frame("t.py(1): start", 0, 130).frame("nn.Module: Net_0", 20, 100, module=0)
    trace.frame("nn.Module: Linear_0", 30, 20, parent=2, module=0)
    trace.operator("aten::linear", 31, 10).operator("aten::addmm", 32, 4).operator("aten::relu", 60, 3)
    totals = program_totals(load(trace.operator("aten::add", 200, 5)))
    assert [(one.path, one.self_cpu_ns, one.total_cpu_ns, one.total_device_ns) for one in totals.modules] == [
        ("Net_0", 3_000, 13_000, 0),
        ("Net_0.Linear_0", 10_000, 10_000, 0),
    ]
    assert totals.module_ns == 13_000
    assert [(one.line, one.self_cpu_ns, one.self_device_ns) for one in totals.lines] == [(1, 13_000, 0)]
    assert totals.line_ns == 13_000


def test_of_two_backward_calls_neither_is_chosen_and_backward_of_backward_follows_both(load):
    trace = model()
    trace.frame("other.py(1): train", 190, 400, thread=3)
    trace.frame("<built-in method run_backward of X object at 0x8>", 195, 300, thread=3, parent=13)
    trace.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 350, 20, thread=2)
    launch(trace, "aten::add_", 355, 5, thread=2)
    assert program_totals(load(trace)).line_ns == 40_000
    trace = model()
    backward(trace, 1, 300, 30, forward=35)
    args = {"Sequence number": 9, "Fwd thread id": 0}
    trace.operator("aten::mul", 310, 4, thread=2, **args)  # inside AddmmBackward0, so itself backward
    backward(trace, 9, 400, 16, forward=310, thread=2)
    assert by_path(program_totals(load(trace)))["Net_0.Linear_0"].backward_ns == 48_000


def test_recomputation_is_charged_to_the_modules_it_calls(load):
    trace = model()
    args = {"Sequence number": 1, "Fwd thread id": 1}
    trace.operator("CheckpointFunctionBackward", 300, 90, thread=2, **args).differentiates(35, 300)
    trace.frame("nn.Module: Linear_1", 310, 20, thread=2, module=1)
    launch(trace, "aten::addmm", 315, 8, thread=2)
    launch(trace, "aten::copy_", 350, 2, thread=2)
    modules = by_path(program_totals(load(trace)))
    # The recomputed call has no Net around it on that thread; the rest goes to what is differentiated.
    assert modules["Linear_1"].backward_ns == 8_000
    assert modules["Net_0.Linear_0"].backward_ns == 2_000


def test_running_frames_are_marked_and_launches_outside_operators_have_a_line(load):
    trace = model()
    launch(trace, "aten::zeros", 950, 2)
    found = lines(program_totals(load(trace)))
    assert found["train.py", 33].kind is LineKind.RUNNING
    assert found["train.py", 10].kind is LineKind.FUNCTION
    trace = model()
    trace.launch(800).kernel("triton_kernel", 90_000, 6)
    found = program_totals(load(trace))
    assert lines(found)["train.py", 10].self_device_ns == 13_000


def test_recursion_keeps_one_place(load):
    trace = TraceBuilder()
    trace.frame("nn.Module: Tree_0", 0, 100, module=0).frame("nn.Module: Leaf_0", 10, 80, module=0, parent=1)
    trace.frame("nn.Module: Tree_0", 20, 60, module=0, parent=2)
    trace.frame("nn.Module: Leaf_0", 30, 10, module=0, parent=3)
    launch(trace, "aten::mm", 32, 5)
    launch(trace, "aten::add", 60, 3)
    totals = program_totals(load(trace))
    assert totals.modules == (
        ModuleTotal("Tree_0", "Tree", 0, 2, 3_000, 8_000, 8_000, 0, 2),
        ModuleTotal("Tree_0.Leaf_0", "Leaf", 1, 2, 5_000, 5_000, 5_000, 0, 1),
    )


def test_a_recursive_function_is_one_line(load):
    trace = TraceBuilder()
    for depth in range(4):
        trace.frame("a.py(1): walk", 10 * depth, 100 - 20 * depth, parent=depth or None)
    trace.frame("<built-in function len>", 90, 1, parent=1)
    launch(trace, "aten::mm", 35, 5)
    assert program_totals(load(trace)).lines[0].calls == 4


def test_a_shared_module_has_a_place_under_each_caller(load):
    trace = TraceBuilder()
    for index in range(2):
        trace.frame(f"nn.Module: Block_{index}", 50 * index, 40, module=index)
        trace.frame("nn.Module: GELU_0", 50 * index + 10, 20, module=0)
        launch(trace, "aten::gelu", 50 * index + 15, index + 1)
    assert {path: one.self_device_ns for path, one in by_path(program_totals(load(trace))).items()} == {
        "Block_0": 0,
        "Block_0.GELU_0": 1_000,
        "Block_1": 0,
        "Block_1.GELU_0": 2_000,
    }


def test_ranks_are_summed_by_path(load):
    ranks = model(), model()
    for rank, trace in enumerate(ranks):
        trace.properties["distributedInfo"] = {"rank": rank, "world_size": 2, "backend": "nccl"}
    totals = program_totals(load(ranks))
    assert by_path(totals)["Net_0"].total_device_ns == 66_000
    assert [(line.line, line.self_device_ns) for line in totals.lines] == [(5, 66_000), (10, 14_000)]


@pytest.mark.parametrize("script", ["profile.py", "trace.py"])
def test_a_script_named_like_the_standard_library_is_the_program(load, script):
    trace = TraceBuilder().frame(f"{script}(3): <module>", 0, 100)
    trace.frame(f"{script}(7): run", 10, 50, parent=1).frame("queue.py(1): get", 15, 30, parent=2)
    launch(trace, "aten::mm", 20, 5)
    assert [line.file for line in program_totals(load(trace)).lines] == [script]


def test_of_two_forward_operators_the_first_counts_whatever_thread_the_file_begins_with(load):
    """The engine's range differentiates one operator, the node inside of it another, of another thread."""
    trace = TraceBuilder()
    trace.frame("train.py(1): early", 0, 100).frame("train.py(2): late", 0, 300, thread=3)
    trace.operator("aten::mm", 10, 5, **{"Sequence number": 1})
    trace.operator("aten::add", 200, 5, thread=3, **{"Sequence number": 2})
    args = {"Fwd thread id": 1}
    trace.operator(
        "autograd::engine::evaluate_function: X", 400, 50, thread=2, **args, **{"Sequence number": 1}
    )
    trace.operator("XBackward0", 401, 20, thread=2, **args, **{"Sequence number": 2})
    trace.differentiates(10, 400).differentiates(200, 401, thread=3)
    trace.launch(440, thread=2).kernel("k", 900, 7)
    totals = program_totals(load(trace))
    assert [(line.function, line.self_device_ns) for line in totals.lines if line.self_device_ns] == [
        ("early", 7_000)
    ]
    trace.events.reverse()
    assert program_totals(load(trace)) == totals


def test_gradient_accumulation_is_charged_to_the_line_that_called_backward(load):
    trace = model()
    name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    trace.operator(name, 350, 20, thread=2)
    launch(trace, "aten::add_", 355, 5, thread=2)
    totals = program_totals(load(trace))
    assert lines(totals)["train.py", 10].backward_ns == 5_000
    assert totals.module_ns == 33_000


def test_a_python_call_inside_an_operator_is_charged(load):
    trace = model().operator("MyFunction", 700, 90, external_id=77)
    trace.frame("kernels.py(3): forward", 710, 50, parent=4)
    trace.launch(720, external_id=77).kernel("k", 90_000, 6)
    trace.launch(780, external_id=77).kernel("k", 91_000, 2)
    found = lines(program_totals(load(trace)))
    assert found["kernels.py", 3].self_device_ns == 6_000
    assert found["train.py", 10].self_device_ns == 9_000


def test_what_the_program_noted_names_its_modules_and_the_lines_that_ran(tmp_path):
    """The call of the first Linear came from line 7 of `forward`, where it is `layers.0`."""
    path = model().write(tmp_path / "trace.json")
    modules = (RecordedModule("Net_0", "Linear_0", "layers.0"),)
    noted = RecordedStructure(("train.py", "net.py"), modules, 0, (30_000,), (7,))
    write_sidecar(sidecar_path(path), sidecar(structure=noted))
    with opscope.load(path) as session:
        totals, (profile,) = program_totals(session), stack_profiles(session)
    assert set(by_path(totals)) == {"Net_0", "Net_0.layers.0", "Net_0.Linear_1"}
    assert "nn.Module: layers.0 (Linear_0)" in profile.names
    of_net = {line.line: (line.kind, line.self_device_ns) for line in totals.lines if line.file == "net.py"}
    assert of_net == {7: (LineKind.EXECUTED, 10_000), 5: (LineKind.FUNCTION, 23_000)}
