"""Look-ups: what singles a definition out, and what stays unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from case_tables import cases
from opscope.provenance.sources import INDEX_FORMAT, Definition, named_arguments, source_index
from torch_tables.definitions import index_of

NATIVE = "aten/src/ATen/native"


def native(body):
    return f"namespace at::native {{\n{body}\n}}\n"


class TestKernel:
    @pytest.fixture
    def index(self, index_of):
        files = {
            "A.cu": "namespace { __global__ void own(int* x) {} }",
            "B.cu": "__global__ void own(int* x) {}\n__global__ void other(int* x) {}",
            "Loops.cuh": "template <int n, class F> __global__ void run(F f) {}\n"
            "template <int n, class F, class G> __global__ void run(F f, G g) {}\n"
            "template <class T> __global__ void other(T* x) {}",
        }
        return index_of({f"{NATIVE}/cuda/{name}": native(text) for name, text in files.items()})

    def test_the_units_own_file_comes_first_then_headers(self, index):
        for unit, line in (("A.cu", 2), ("B.cu", 2)):
            found = index.kernel("at::native::own", [unit])
            assert (found.file, found.line) == (f"{NATIVE}/cuda/{unit}", line)
        assert index.kernel("at::native::own") is None
        assert index.kernel("at::native::own", ["A.cu", "B.cu"]) is None
        in_unit = index.kernel("at::native::other", ["B.cu"])
        in_header = index.kernel("at::native::other", ["A.cu"])
        assert (in_unit.file, in_header.file) == (f"{NATIVE}/cuda/B.cu", f"{NATIVE}/cuda/Loops.cuh")

    def test_the_instance_tells_templates_apart(self, index):
        found = index.kernel("at::native::run", ["A.cu"], template_arguments=["4", "Gelu", "Add"])
        assert (found.line, found.template_parameters) == (3, ("n", "F", "G"))
        assert index.kernel("at::native::run", ["A.cu"]).line is None

    @cases("name")
    def test_anonymous_namespaces_do_not_count(self, index, name):
        assert index.kernel(name, ["A.cu"]) is not None

    def test_a_namespace_named_by_a_macro_may_be_any(self, index_of):
        index = index_of({"a.h": "namespace FLASH_NAMESPACE { __global__ void k() {} }"})
        assert index.kernel("pytorch_flash::k") is not None
        assert index.kernel("k") is not None


class TestFunctor:
    @pytest.fixture
    def index(self, index_of):
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

    @cases("owner", "units", "place", "kind")
    def test_where_it_is_defined(self, index, owner, units, place, kind):
        found = index.functor(owner, units)
        assert (f"{found.file}:{found.line}", found.kind) == (f"{NATIVE}/{place}", kind)

    @pytest.mark.parametrize(
        ("owner", "units"),
        [("at::native::GeluCUDAKernelImpl", ["Other.cu"]), ("at::native::Nothing", []), ("", []), ("::", []),
         ("::operator()" * 5000, [])],
    )  # fmt: skip
    def test_unknown(self, index, owner, units):
        assert index.functor(owner, units) is None


class TestNamedArguments:
    def test_arguments_have_the_names_of_their_parameters(self):
        found = named_arguments(("T", "Ts...", "N"), ("a", "b", "c", "1"))
        assert found == {"T": "a", "Ts": "b, c", "N": "1"}
        assert named_arguments(("T", "Ts..."), ("a",)) == {"T": "a", "Ts": ""}
        assert named_arguments(("T", ""), ("float", "0")) == {"T": "float"}

    @pytest.mark.parametrize("arguments", [(), ("a",), ("a", "b", "c")])
    def test_none_if_they_do_not_fit(self, arguments):
        assert named_arguments(("T", "N"), arguments) is None


@pytest.mark.parametrize("version", [None, "", "main", "../2.6.0", "2.6"])
def test_what_is_no_version_has_no_index(version):
    assert source_index(version) is None


KERNEL = Definition("kernel", "k", "at::native", "b.cu", 7, 12, ("T", "", "Ts..."), "T*, int", ("s",), True)
FUNCTION = Definition("function", "f", "", "a.cpp", 3, 3, launchers=("l", "m"))
ENTRY = ("s", "CUDA", "f", "b.cu", 9)


def table(*definitions):
    return index_of("2.6.0", "a" * 40, (definitions, [ENTRY]))


def decoded(content):
    return INDEX_FORMAT.decode(content, "x.zst")


def test_encoding_is_lossless():
    again = decoded(INDEX_FORMAT.encode(table(KERNEL, FUNCTION)))
    assert list(again) == [FUNCTION, KERNEL]
    assert (again.version, again.git_version, again.registrations) == ("2.6.0", "a" * 40, (ENTRY,))


_NAMES = st.sampled_from(["f", "g", "operator<", "h"])
_DEFINITIONS = st.builds(
    lambda kind, name, file, line, length, parameters: Definition(
        kind, name, "at", file, line, line + length, parameters
    ),
    st.sampled_from(["function", "class", "kernel"]),
    _NAMES,
    st.sampled_from(["a.cu", "b.cu", "c.h"]),
    st.integers(1, 100_000),
    st.integers(0, 5000),
    st.sampled_from([(), ("",), ("T", "Ts...")]),
)


@given(st.lists(_DEFINITIONS, max_size=30))
def test_any_definitions_come_back(definitions):
    again = decoded(INDEX_FORMAT.encode(table(*definitions)))
    assert sorted(again, key=repr) == sorted(definitions, key=repr)
    for name in {one.name for one in definitions}:
        assert sorted(again.named(name), key=repr) == sorted(
            (d for d in definitions if d.name == name), key=repr
        )
