"""What a machine lacks is an error with what to install; what torch.compile builds knows one size."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking.suite import (  # noqa: E402
    Settings,
    compiled,
)
from opscope.benchmarking.suite import triton as triton_implementation  # noqa: E402
from opscope.benchmarking.suites import (  # noqa: E402
    SuiteOptions,
    suite,
)
from opscope.errors import DependencyError, MeasurementError  # noqa: E402
from opscope.kernels.triton_loader import load_triton  # noqa: E402

CPU = Settings((8, 8), "float32", "cpu")

# Importing torch's compiler calls what torch itself has deprecated.
imports_compiler = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")


def implementation(name, which, **options):
    made = suite(name).problem(SuiteOptions(device="cpu", implementations=(which,), **options))
    return made.implementations[0]


@pytest.mark.parametrize("which", ["cuda", "cuda_teaching"])
def test_cuda_kernels_need_a_cuda_device(which):
    with pytest.raises(MeasurementError, match="needs a CUDA device"):
        implementation("gelu", which).build()


def test_tf32_needs_a_cuda_device():
    with pytest.raises(MeasurementError, match=r"compute capability 8\.0"):
        implementation("matmul", "torch_tf32").build()


def test_triton_kernels_need_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    load_triton.cache_clear()
    with pytest.raises(DependencyError, match=r"pip install 'opscope\[triton\]'"):
        implementation("add", "triton").build()


def test_triton_that_cannot_reach_the_gpu_says_what_it_needs(monkeypatch):
    triton = pytest.importorskip("triton")

    class Driver:
        @property
        def active(self):
            raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\n...")

    monkeypatch.setattr(triton.runtime, "driver", Driver())
    on_gpu = triton_implementation(Settings((8, 8), "float32", "cuda:0"), "softmax", "")
    with pytest.raises(DependencyError, match=r"Failed to find C compiler.*needs an NVIDIA driver and a C"):
        on_gpu.build()


@imports_compiler
def test_compile_needs_a_cpp_compiler():
    from torch._inductor import config

    build = implementation("gelu", "compile").build
    with (
        config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(DependencyError, match=r"C\+\+ compiler.*Install g\+\+"),
    ):
        build()


def test_the_interpreter_does_not_pretend_to_multiply_bfloat16():
    with pytest.raises(MeasurementError, match="cannot multiply bfloat16"):
        implementation("matmul", "triton", dtype="bfloat16").build()


@pytest.mark.parametrize("which", ["sdpa_efficient", "sdpa_cudnn"])
def test_a_backend_that_is_not_offered_says_why_in_the_words_of_torch(which):
    with pytest.raises(
        MeasurementError, match=r"not offered here for float32, head_dim 64: No viable backend"
    ):
        implementation("attention", which).build()


def test_warnings_of_a_refusing_backend_become_its_reason(monkeypatch):
    import warnings

    def refuse(*_args, **_kwargs):
        warnings.warn("Flash attention needs more. (Triggered internally at sdp.cpp:1.)", stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", refuse)
    with pytest.raises(MeasurementError, match=r"needs more\. No available kernel\."):
        implementation("attention", "sdpa_flash").build()


def test_warnings_of_a_working_backend_are_passed_on(monkeypatch):
    import warnings

    def warn(query, *_args, **_kwargs):
        warnings.warn("slow path", stacklevel=1)
        return query

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", warn)
    with pytest.warns(UserWarning, match="slow path"):
        implementation("attention", "sdpa_flash").build()


@imports_compiler
def test_compiled_functions_know_one_size_and_share_no_limit():
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    sizes = range(2, 12)  # more than the eight that one code object may be compiled for
    for size in sizes:
        x = torch.ones(size, 3)
        assert torch.equal(_eager_compiled()(x), x + 1)
    assert counters["stats"]["unique_graphs"] == len(sizes)


def _eager_compiled():
    """What `compiled` builds, without generating code: torch's tracing alone decides what is shared."""
    compile_with_inductor = torch.compile

    def compile_eagerly(function, **options):
        return compile_with_inductor(function, backend="eager", **options)

    torch.compile = compile_eagerly
    try:
        return compiled(CPU, _plus_one).build()
    finally:
        torch.compile = compile_with_inductor


def _plus_one(x):
    return x + 1


@imports_compiler
@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_the_compiled_composition_is_right(name):
    made = suite(name).problem(
        SuiteOptions(device="cpu", shape=(5, 37), implementations=("compile", "torch"))
    )
    by_compile, by_torch = (each.build() for each in made.implementations)
    inputs = made.make_inputs(0)
    assert torch.allclose(by_compile(*inputs), by_torch(*inputs), atol=1e-5)
