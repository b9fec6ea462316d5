"""Look-ups: what singles a definition out, and what stays unknown."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opscope.provenance.sources import SourceIndex

IndexOf = Callable[..., SourceIndex]
NATIVE = "aten/src/ATen/native"


def native(body: str) -> str:
    return f"namespace at::native {{\n{body}\n}}\n"


class TestFunction:
    def test_only_one_there_is(self, index_of: IndexOf) -> None:
        index = index_of({f"{NATIVE}/cuda/A.cu": native("Tensor f_cuda(const Tensor& x) {}")})
        found = index.function("f_cuda")
        assert found is not None
        assert (found.kind, found.scope, found.file, found.line, found.end_line) == (
            "function",
            "at::native",
            f"{NATIVE}/cuda/A.cu",
            2,
            2,
        )
        assert index.function("g_cuda") is None

    def test_namesakes_elsewhere_do_not_count(self, index_of: IndexOf) -> None:
        index = index_of(
            {
                f"{NATIVE}/ChanelShuffle.cpp": native(
                    "Tensor channel_shuffle(const Tensor& x, int64_t g) {}"
                ),
                f"{NATIVE}/xnnpack/ChannelShuffle.cpp": (
                    "namespace at::native::xnnpack { Tensor channel_shuffle(const Tensor& x, int64_t g) {} }"
                ),
                f"{NATIVE}/Dropout.cpp": native(
                    "namespace { template <bool b> Tensor channel_shuffle(const Tensor& x, int64_t g) {} }"
                ),
            }
        )
        found = index.function("channel_shuffle", key="CUDA")
        assert found is not None
        assert found.file == f"{NATIVE}/ChanelShuffle.cpp"

    @pytest.mark.parametrize(
        ("key", "file"),
        [("CUDA", "cuda/A.cu"), ("SparseCUDA", "cuda/A.cu"), ("CPU", "A.cpp"), ("MPS", "mps/A.mm")],
    )
    def test_the_key_says_where_to_look(self, index_of: IndexOf, key: str, file: str) -> None:
        files = ["cuda/A.cu", "A.cpp", "mps/A.mm"]
        index = index_of({f"{NATIVE}/{name}": native("void f(int64_t x) {}") for name in files})
        found = index.function("f", key=key)
        assert found is not None
        assert found.file == f"{NATIVE}/{file}"

    def test_other_backends_hold_no_cuda_function(self, index_of: IndexOf) -> None:
        index = index_of(
            {f"{NATIVE}/mps/A.mm": native("void f() {}"), f"{NATIVE}/cpu/A.cpp": native("void f() {}")}
        )
        assert index.function("f", key="CUDA") is None

    def test_ambiguous_between_files_is_unknown(self, index_of: IndexOf) -> None:
        index = index_of({f"{NATIVE}/cuda/{name}.cu": native("void f() {}") for name in "AB"})
        assert index.function("f") is None

    def test_the_unit_decides_between_files(self, index_of: IndexOf) -> None:
        index = index_of({f"{NATIVE}/cuda/{name}.cu": native("void f() {}") for name in "AB"})
        for unit in ("B.cu", f"{NATIVE}/cuda/B.cu"):
            found = index.function("f", units=[unit])
            assert found is not None
            assert found.file == f"{NATIVE}/cuda/B.cu"

    def test_the_unit_vetoes(self, index_of: IndexOf) -> None:
        index = index_of({f"{NATIVE}/cuda/A.cu": native("void f() {}")})
        assert index.function("f", units=["B.cu"]) is None
        assert index.function("f", units=["xA.cu"]) is None

    def test_overloads_in_one_file(self, index_of: IndexOf) -> None:
        index = index_of(
            {
                f"{NATIVE}/A.cpp": native(
                    "void f(const Tensor& x) {}\nvoid f(const Tensor& x, const Scalar& y) {}"
                )
            }
        )
        found = index.function("f", parameters=["Tensor self", "Scalar other"])
        assert found is not None
        assert found.line == 3
        unknown = index.function("f")
        assert unknown is not None
        assert (unknown.file, unknown.line, unknown.end_line) == (f"{NATIVE}/A.cpp", None, None)

    def test_composite_functions_are_never_structured(self, index_of: IndexOf) -> None:
        index = index_of(
            {
                f"{NATIVE}/Indexing.cpp": native(
                    "TORCH_IMPL_FUNC(gather_out)(const Tensor& x, int64_t d, const Tensor& o) {}"
                ),
                f"{NATIVE}/Named.cpp": native("Tensor& gather_out(const Tensor& x, Dimname d, Tensor& o) {}"),
            }
        )
        structured = index.function("gather_out", key="CUDA", parameters=["Tensor", "int", "Tensor"])
        composite = index.function("gather_out", key="CompositeImplicitAutograd")
        assert structured is not None
        assert structured.file == f"{NATIVE}/Indexing.cpp"
        assert composite is not None
        assert composite.file == f"{NATIVE}/Named.cpp"
        assert index.function("gather_out", key="CUDA") is None

    def test_a_qualified_name_is_looked_up_in_its_namespace(self, index_of: IndexOf) -> None:
        index = index_of({"torch/csrc/autograd/FunctionsManual.cpp": "namespace a::details { void f() {} }"})
        assert index.function("a::details::f") is not None
        assert index.function("f") is None


class TestKernel:
    @pytest.fixture
    def index(self, index_of: IndexOf) -> SourceIndex:
        return index_of(
            {
                f"{NATIVE}/cuda/A.cu": native("namespace { __global__ void own(int* x) {} }"),
                f"{NATIVE}/cuda/B.cu": native(
                    "__global__ void own(int* x) {}\n__global__ void other(int* x) {}"
                ),
                f"{NATIVE}/cuda/Loops.cuh": native(
                    "template <int n, class F> __global__ void run(F f) {}\n"
                    "template <int n, class F, class G> __global__ void run(F f, G g) {}\n"
                    "template <class T> __global__ void other(T* x) {}"
                ),
            }
        )

    def test_the_units_own_file_comes_first(self, index: SourceIndex) -> None:
        for unit, line in (("A.cu", 2), ("B.cu", 2)):
            found = index.kernel("at::native::own", [unit])
            assert found is not None
            assert (found.file, found.line) == (f"{NATIVE}/cuda/{unit}", line)
        assert index.kernel("at::native::own") is None
        assert index.kernel("at::native::own", ["A.cu", "B.cu"]) is None

    def test_then_headers(self, index: SourceIndex) -> None:
        in_unit = index.kernel("at::native::other", ["B.cu"])
        in_header = index.kernel("at::native::other", ["A.cu"])
        assert in_unit is not None
        assert in_header is not None
        assert (in_unit.file, in_header.file) == (f"{NATIVE}/cuda/B.cu", f"{NATIVE}/cuda/Loops.cuh")

    def test_the_instance_tells_templates_apart(self, index: SourceIndex) -> None:
        found = index.kernel("at::native::run", ["A.cu"], template_arguments=["4", "Gelu", "Add"])
        assert found is not None
        assert (found.line, found.template_parameters) == (3, ("n", "F", "G"))
        unknown = index.kernel("at::native::run", ["A.cu"])
        assert unknown is not None
        assert unknown.line is None

    @pytest.mark.parametrize(
        "name",
        [
            "at::native::(anonymous namespace)::own",
            "_INTERNAL_5cd812b1_7_Loss_cu_5b0651e1::at::native::(anonymous namespace)::own",
            "own",
        ],
    )
    def test_anonymous_namespaces_do_not_count(self, index: SourceIndex, name: str) -> None:
        assert index.kernel(name, ["A.cu"]) is not None

    def test_a_namespace_named_by_a_macro_may_be_any(self, index_of: IndexOf) -> None:
        index = index_of({"a.h": "namespace FLASH_NAMESPACE { __global__ void k() {} }"})
        assert index.kernel("pytorch_flash::k") is not None
        assert index.kernel("k") is not None


class TestFunctor:
    @pytest.fixture
    def index(self, index_of: IndexOf) -> SourceIndex:
        return index_of(
            {
                f"{NATIVE}/cuda/Gelu.cu": native(
                    "void GeluCUDAKernelImpl(TensorIteratorBase& it) {}\n"
                    "TORCH_IMPL_FUNC(relu_out)(const Tensor& x) {}\n"
                    "template <class T> struct Op { T operator()(T x) { return x; } };\n"
                    "template <> struct Op<int> { int operator()(int x) { return x; } };"
                ),
                f"{NATIVE}/cuda/Mul.h": native(
                    "template <class T> struct MulFunctor { MulFunctor(T x) {} };"
                ),
                f"{NATIVE}/ufunc/add.h": (
                    "namespace at::native::ufunc {\ntemplate <class T> T add(T a, T b) {}\n"
                    "template <class T> Vectorized<T> add(Vectorized<T> a, Vectorized<T> b) {}\n}"
                ),
            }
        )

    @pytest.mark.parametrize(
        ("owner", "units", "place", "kind"),
        [
            ("at::native::GeluCUDAKernelImpl", ["Gelu.cu"], "cuda/Gelu.cu:2", "function"),
            ("at::native::MulFunctor", ["Gelu.cu"], "cuda/Mul.h:2", "class"),
            ("at::native::MulFunctor::operator()", ["Gelu.cu"], "cuda/Mul.h:2", "class"),
            ("at::native::Op", [], "cuda/Gelu.cu:4", "class"),
            ("at::native::structured_relu_out::impl", [], "cuda/Gelu.cu:3", "structured"),
            ("at::native::CUDAFunctor_add", ["UfuncCUDA_add.cu"], "ufunc/add.h:2", "function"),
            ("at::native::CUDAFunctorOnOther_add", [], "ufunc/add.h:2", "function"),
        ],
    )
    def test_where_it_is_defined(
        self, index: SourceIndex, owner: str, units: list[str], place: str, kind: str
    ) -> None:
        found = index.functor(owner, units)
        assert found is not None
        assert (f"{found.file}:{found.line}", found.kind) == (f"{NATIVE}/{place}", kind)

    @pytest.mark.parametrize(
        ("owner", "units"),
        [
            ("at::native::GeluCUDAKernelImpl", ["Other.cu"]),
            ("at::native::Nothing", []),
            ("", []),
            ("::", []),
            ("::operator()" * 5000, []),
        ],
    )
    def test_unknown(self, index: SourceIndex, owner: str, units: list[str]) -> None:
        assert index.functor(owner, units) is None


class TestStubImplementation:
    @pytest.fixture
    def index(self, index_of: IndexOf) -> SourceIndex:
        return index_of(
            {
                f"{NATIVE}/A.cpp": native("DEFINE_DISPATCH(sin_stub);"),
                f"{NATIVE}/cuda/A.cu": native(
                    "void sin_kernel(int x) {}\nREGISTER_DISPATCH(sin_stub, &sin_kernel)\n"
                    "REGISTER_DISPATCH(cast_stub, static_cast<fn>(&sin_kernel))"
                ),
                f"{NATIVE}/cpu/A.cpp": native(
                    "void sin_kernel(int x) {}\nREGISTER_DISPATCH(sin_stub, &sin_kernel)"
                ),
                f"{NATIVE}/cuda/linalg/L.cpp": native(
                    "void lu(int x) {}\nREGISTER_CUDA_DISPATCH(lu_stub, &lu)"
                ),
                f"{NATIVE}/cuda/Lazy.cpp": native(
                    "void lazy_lu(int x) {}\nREGISTER_CUDA_DISPATCH(lu_stub, &lazy_lu)"
                ),
                f"{NATIVE}/B.cpp": native("REGISTER_NO_CPU_DISPATCH(lu_stub)"),
            }
        )

    @pytest.mark.parametrize(
        ("stub", "key", "file", "line"),
        [
            ("sin_stub", "CUDA", f"{NATIVE}/cuda/A.cu", 2),
            ("sin_stub", "CPU", f"{NATIVE}/cpu/A.cpp", 2),
            ("lu_stub", "CUDA", f"{NATIVE}/cuda/linalg/L.cpp", 2),
        ],
    )
    def test_the_key_follows_from_macro_and_file(
        self, index: SourceIndex, stub: str, key: str, file: str, line: int
    ) -> None:
        found = index.stub_implementation(stub, key=key)
        assert found is not None
        assert (found.kind, found.file, found.line) == ("function", file, line)

    def test_what_is_no_plain_name_is_where_it_is_registered(self, index: SourceIndex) -> None:
        found = index.stub_implementation("cast_stub")
        assert found is not None
        assert (found.kind, found.name, found.line) == ("stub", "cast_stub", 4)

    def test_the_unit_vetoes(self, index: SourceIndex) -> None:
        assert index.stub_implementation("sin_stub", units=["B.cu"]) is None
        assert index.stub_implementation("sin_stub", units=["A.cu"]) is not None
