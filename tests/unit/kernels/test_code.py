"""Generated code, of Triton as on a GPU (fakes of its objects) and of torch.compile on the CPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from opscope.errors import MeasurementError
from opscope.kernels import code
from opscope.kernels import code as launches
from opscope.kernels.code import CodeKind, CodeText, generated_code, triton_kernels

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ASM = {"ttir": "tt.func", "ttgir": "ttg.func", "ptx": ".version 8.7", "cubin": b"\x7fELF"}


class JITFunction:
    """Triton's, as far as launches go."""

    def __init__(self, fn, **asm):
        self.fn = fn
        self.src = f"def {fn.__name__}(): ..."
        self.kernel = SimpleNamespace(asm=asm)

    def run(self, *args, grid, warmup):
        return self.kernel


class CachingAutotuner:
    """Inductor's, as far as launches go."""

    def __init__(self, launcher):
        self.launchers = [launcher]
        self.inductor_meta = {"kernel_name": "triton_poi_fused_gelu_0"}
        self.fn = SimpleNamespace(__name__="triton_")

    def run(self, *args, stream):
        return None


def scale_kernel():
    """Stands for the Python function of a Triton kernel."""


@pytest.fixture
def fakes(monkeypatch):
    # Before parts of Triton are replaced: the first recording with a compiler imports what needs them whole.
    pytest.importorskip("torch._inductor.compile_fx")
    pytest.importorskip("torch._inductor.select_algorithm")
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", SimpleNamespace(JITFunction=JITFunction))
    heuristics = SimpleNamespace(CachingAutotuner=CachingAutotuner)
    monkeypatch.setitem(sys.modules, "torch._inductor.runtime.triton_heuristics", heuristics)


def launching(*functions):
    return lambda x: [function.run(x, grid=(1,), warmup=False) for function in functions]


@pytest.mark.exhaustive(few=False)  # importing torch's compiler takes seconds
def test_the_ptx_of_each_triton_kernel_that_a_call_launches(fakes):
    fn = launching(JITFunction(scale_kernel, **ASM), JITFunction(launching, **ASM | {"ptx": ".version 9"}))
    assert generated_code(CodeKind.PTX, fn, (torch.ones(2),)) == [
        CodeText("scale_kernel (Triton)", "ptx", ".version 8.7"),
        CodeText("launching (Triton)", "ptx", ".version 9"),
    ]


@pytest.mark.exhaustive(few=False)
def test_source_and_intermediate_forms_of_a_triton_kernel(fakes):
    assert generated_code(CodeKind.TRITON, launching(JITFunction(scale_kernel, **ASM)), (torch.ones(2),)) == [
        ("scale_kernel: source", "python", "def scale_kernel(): ..."),
        ("scale_kernel: Triton IR", "mlir", "tt.func"),
        ("scale_kernel: Triton GPU IR", "mlir", "ttg.func"),
    ]


@pytest.mark.exhaustive(few=False)
def test_the_machine_code_of_a_triton_kernel_is_disassembled(fakes, monkeypatch):
    monkeypatch.setattr(code, "cubin_sass", lambda cubin: f"{len(cubin)} bytes")
    fn = launching(JITFunction(scale_kernel, **ASM))
    assert generated_code(CodeKind.SASS, fn, (torch.ones(2),)) == [
        ("scale_kernel (Triton)", "sass", "4 bytes")
    ]


@pytest.mark.exhaustive(few=False)
def test_a_kernel_launched_twice_is_shown_once(fakes):
    function = JITFunction(scale_kernel, **ASM)
    assert len(generated_code(CodeKind.PTX, launching(function, function), (torch.ones(2),))) == 1


@pytest.mark.exhaustive(few=False)
def test_launching_is_as_before_afterwards(fakes):
    before = JITFunction.run, CachingAutotuner.run

    def failing(x):
        raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        triton_kernels(failing, (torch.ones(2),))
    assert (JITFunction.run, CachingAutotuner.run) == before


@pytest.mark.exhaustive(few=False)
def test_a_kernel_of_torch_compile_has_the_name_it_has_in_a_profile(fakes):
    launcher = SimpleNamespace(bin=SimpleNamespace(asm=ASM))
    tuner = CachingAutotuner(launcher)
    (text,) = generated_code(CodeKind.PTX, lambda x: tuner.run(x, stream=0), (torch.ones(2),))
    assert text == ("triton_poi_fused_gelu_0 (Triton)", "ptx", ".version 8.7")


@pytest.mark.exhaustive(few=False)
def test_a_statically_launched_kernel_is_found_in_tritons_cache(fakes, tmp_path, monkeypatch):
    monkeypatch.setattr(launches, "_cache_folders", lambda: [tmp_path / "empty", tmp_path])
    (tmp_path / "HASH").mkdir()
    (tmp_path / "HASH" / "kernel.ptx").write_text(".version 8.7")
    (tmp_path / "HASH" / "kernel.json").write_text("{}")
    tuner = CachingAutotuner(SimpleNamespace(cache_hash="HASH"))
    (text,) = generated_code(CodeKind.PTX, lambda x: tuner.run(x, stream=0), (torch.ones(2),))
    assert text.text == ".version 8.7"


@pytest.mark.parametrize("kind", CodeKind)
def test_a_call_without_triton_and_torch_compile_says_so(kind):
    with pytest.raises(MeasurementError, match=f"no {kind} code to show.* no compiled Triton kernel"):
        generated_code(kind, torch.square, (torch.ones(2),))


@pytest.mark.exhaustive  # seconds of a compiler
@pytest.mark.filterwarnings("ignore")  # The compilers' own.
def test_the_code_that_torch_compile_writes(fresh_compiler):
    compiled = torch.compile(lambda x: torch.nn.functional.gelu(x) * 2)
    (text,) = generated_code(CodeKind.TRITON, compiled, (torch.ones(1000),))
    assert text.title == "torch.compile: graph 1 of 1"
    assert text.language == "python"
    assert "erf" in text.text


@pytest.fixture
def fresh_compiler():
    yield
    torch._dynamo.reset()
