"""What the dispatcher of a real PyTorch says. What would poison this process runs in one of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from opscope.capture import registrations as module
from opscope.capture.registrations import collect_registrations
from opscope.model.origin import OperatorRegistration, RegistrationKind

CUSTOM_OPERATORS = Path(__file__).with_name("custom_operators.py.txt").read_text(encoding="utf-8")
CXX = Path(__file__).with_name("operators.cpp.txt").read_text(encoding="utf-8")
COLLECT = Path(__file__).with_name("collect.py.txt").read_text(encoding="utf-8")


@pytest.fixture
def collect(torch, tmp_path):
    """Runs a program in a process of its own and collects there; returns registrations by name."""

    def run(program, *names):
        path = tmp_path / "program.py"
        path.write_text(program + COLLECT)
        result = subprocess.run(
            [sys.executable, "-W", "ignore", str(path), *names],
            capture_output=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        found = msgspec.json.decode(result.stdout, type=tuple[OperatorRegistration, ...])
        return path, {registration.name: registration for registration in found}

    return run


@pytest.mark.torch
def test_operators_written_in_python(torch, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(CUSTOM_OPERATORS)
    program = {}
    exec(compile(path.read_text(), str(path), "exec"), program)
    names = ("custom::plain", "custom::launching", "custom::doubled")
    found = {registration.name: registration for registration in collect_registrations(names)}
    assert list(found) == ["custom::doubled", "custom::doubled.twice", "custom::launching", "custom::plain"]
    plain = found["custom::plain"]
    assert plain.kind is RegistrationKind.CUSTOM_OP
    assert plain.schema == "custom::plain(Tensor x) -> Tensor"
    assert (plain.python_file, plain.python_line) == (str(path), 3)
    assert plain.end_line in {8, 9, 10}  # Python versions differ on a closing bracket
    assert plain.kernels["CUDA"] == f"{path}:12"
    assert plain.kernels["CompositeExplicitAutograd"] == f"{path}:3"
    launching = found["custom::launching"]
    assert launching.kind is RegistrationKind.TRITON_OP
    assert (launching.python_file, launching.python_line, launching.end_line) == (str(path), 16, 18)
    doubled = found["custom::doubled"]
    assert doubled.kind is RegistrationKind.LIBRARY
    assert doubled.kernels == {"CompositeExplicitAutograd": f"{path}:20"}  # where the library was made
    assert (doubled.python_file, doubled.python_line) == (str(path), None)
    assert found["custom::doubled.twice"].kernels == {}
    assert all(registration.overrides == {} for registration in found.values())


@pytest.mark.torch
@pytest.mark.exhaustive  # a C++ compiler takes 14 s for it
def test_operators_written_in_cxx(torch, collect, tmp_path):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    root = Path(torch.__file__).parent
    (tmp_path / "small.cpp").write_text(CXX)
    command = [compiler, "-shared", "-fPIC", "-O0", "-std=c++20", "-w", "-o", "small.so", "small.cpp"]
    include = [f"-I{root / 'include'}", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    link = ["-L", str(root / "lib"), "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root / 'lib'}"]
    subprocess.run([*command, *include, *link], check=True, cwd=tmp_path, capture_output=True)
    program = "import torch\n\ntorch.ops.load_library('./small.so')\n"
    _, found = collect(program, "cxx::same", "aten::neg.out", "aten::neg")
    same = found["cxx::same"]
    assert (same.kind, same.definition) == (RegistrationKind.CXX, "small.cpp:4")
    assert (same.kernels, same.python_file) == ({"CPU": "small.cpp:5"}, None)
    replaced = found["aten::neg"]
    assert (replaced.kind, replaced.kernels) == (RegistrationKind.CXX, {"CPU": "small.cpp:6"})
    assert "RegisterCPU" in replaced.overrides["CPU"]
    assert "aten::neg.out" not in found


@pytest.mark.torch
def test_operators_that_come_with_pytorch(torch):
    asked = ["quantized::add", "aten::relu", "record_param_comms"]
    found = {one.name: one for one in collect_registrations(asked)}
    assert found["quantized::add"].kind is RegistrationKind.CXX
    assert found["quantized::add"].definition.startswith("aten/src/ATen/native/quantized/library.cpp:")
    assert not any(name.startswith("aten::relu") for name in found)


DUMP = Path(__file__).with_name("registrations.txt").read_text(encoding="utf-8")


@pytest.fixture
def fake_torch(monkeypatch):
    """A PyTorch whose dispatcher knows one operator."""

    def dump(name):
        if name == "aten::gone":
            raise RuntimeError("no such operator")
        return DUMP

    private = SimpleNamespace(
        _dispatch_dump=dump, _dispatch_get_all_op_names=lambda: ["aten::f", "aten::g", "aten::gone"]
    )
    fake = SimpleNamespace(__file__="/env/torch/__init__.py", _C=private)
    monkeypatch.setattr(module, "require_torch", lambda: fake)
    for name in ("torch._library.custom_ops", "torch._native.registry"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return fake


def test_code_that_pytorch_itself_replaces_in_python(fake_torch, monkeypatch):
    def kernel(x):
        return x

    line = kernel.__code__.co_firstlineno
    node = SimpleNamespace(impl_fn=kernel, active=True)
    off = SimpleNamespace(impl_fn=kernel, active=False)
    registry = SimpleNamespace(_graphs={("f", "CUDA"): [off, node]})
    monkeypatch.setitem(sys.modules, "torch._native.registry", registry)
    (registration,) = collect_registrations(["aten::f"])
    assert registration.kernels == {"CUDA": "torch/_native/registry.py:9"}
    assert registration.overrides == {"CUDA": "build/aten/src/ATen/RegisterCUDA.cpp:8"}
    assert (registration.python_line, registration.end_line) == (line, line + 1)


def test_what_a_release_lacks_is_left_out(fake_torch):
    (registration,) = collect_registrations(["aten::f", "aten::gone", "aten::unknown"])
    assert registration.python_file == "torch/_native/registry.py"
    assert registration.python_line is None
    del fake_torch._C._dispatch_get_all_op_names
    assert [one.name for one in collect_registrations(["aten::f", "step"])] == ["aten::f"]
    del fake_torch._C._dispatch_dump
    assert collect_registrations(["aten::f"]) == ()
