"""What a program knows of its recorded frames, from torch's own event tree."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from opscope.capture.cycle import attempted  # noqa: E402
from opscope.capture.process_sources import FileOwners, read_structure  # noqa: E402
from opscope.capture.recording import Recording  # noqa: E402
from opscope.model.sidecar import RecordedModule, RecordedSettings  # noqa: E402

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).with_name("blocks.py.txt").read_text(encoding="utf-8")


@pytest.fixture
def program(tmp_path, monkeypatch):
    path = tmp_path / "own_program.py"
    path.write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.spec_from_file_location("own_program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(work):
    with torch.profiler.profile(with_stack=True) as profile:
        work()
    return profile.profiler.kineto_results.experimental_event_tree()


def test_modules_have_attribute_names_and_calls_the_line_they_were_made_from(program):
    found = read_structure(record(program.run))
    assert found.modules == (
        RecordedModule("Block_0", "Linear_0", "inner"),
        RecordedModule("Block_1", "Linear_1", "inner"),
        RecordedModule("Net_0", "Block_0", "blocks.0"),
        RecordedModule("Net_0", "Block_1", "blocks.1"),
    )  # the Linear of the plain list is no attribute, so it has no name
    assert [file for file in found.files if file.endswith("own_program.py")]
    assert not [file for file in found.files if file.startswith(("torch/", "<"))]
    assert {20, 21, 22, 27} <= set(found.call_lines)
    assert set(found.call_lines) & {9, 10}  # relu and the module call in its arguments
    assert found.call_starts_ns[0] == 0
    assert list(found.call_starts_ns) == sorted(found.call_starts_ns)


def test_two_modules_at_one_address_have_no_names(program):
    net = program.net
    events = [
        call(
            "nn.Module: Net_0", 1, module=net, children=[call("nn.Module: Block_0", 2, module=net.blocks[0])]
        ),
        call(
            "nn.Module: Net_1", 3, module=net, children=[call("nn.Module: Block_1", 4, module=net.blocks[1])]
        ),
    ]
    assert read_structure(events).modules == ()


def test_two_calls_in_one_nanosecond_have_no_line():
    events = [call("f.py(1): f", time, line=line) for time, line in ((10, 5), (10, 6), (12, 7))]
    found = read_structure(events, is_own=lambda file: file == "f.py")
    assert (found.origin_ns, found.call_starts_ns, found.call_lines) == (12, (0,), (7,))


def test_a_frame_whose_name_torch_cannot_tell_loses_no_other():
    class Unnamed(SimpleNamespace):
        name = property(lambda self: b"\xa0".decode())

    known, gone = call("f.py(1): f", 10), call("", 11)
    del gone.name
    roots = [Unnamed(**vars(gone)), known]
    assert read_structure(roots, is_own=lambda file: file == "f.py").files == ("f.py",)


def call(name, time_ns, *, line=1, module=None, children=()):
    info = module and SimpleNamespace(cls_name=type(module).__name__, self_ptr=id(module))
    caller = SimpleNamespace(file_name="f.py", line_number=line)
    return SimpleNamespace(
        tag=torch._C._profiler._EventType.PyCall,
        name=name,
        start_time_ns=time_ns,
        children=children,
        extra_fields=SimpleNamespace(caller=caller, module=info),
    )


def test_files_are_told_apart_by_where_they_lie_or_by_name(tmp_path, monkeypatch):
    # Named like a library, but the program's; and the other way round.
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "mine.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    owners = FileOwners()
    assert owners.is_program_file("transformers/mine.py")
    assert not owners.is_program_file("enum.py")
    assert not owners.is_program_file("torch/nn/modules/linear.py")
    assert not owners.is_program_file("opscope/api.py")
    assert not owners.is_program_file(f"{Path(pytest.__file__).parent}/__init__.py")
    assert owners.is_program_file(str(tmp_path / "transformers" / "mine.py"))
    assert owners.is_program_file("no_such_file_of_mine.py")
    assert not owners.is_program_file("<string>")


def test_a_tree_that_cannot_be_read_is_a_gap_and_none_without_stacks(monkeypatch):
    recording = Recording(settings(with_stack=True))
    monkeypatch.setattr(recording._engine, "events", lambda: [object()])
    gaps = []
    assert attempted(gaps, "Python frames", recording.structure) is None
    (gap,) = gaps
    assert gap.part == "Python frames"
    assert gap.reason.startswith("AttributeError: ")
    assert Recording(settings(with_stack=False)).structure() is None


def settings(*, with_stack):
    return RecordedSettings(False, with_stack, False, False, activities=("cpu",))
