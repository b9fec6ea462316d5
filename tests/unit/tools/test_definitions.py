from __future__ import annotations

from collections.abc import Callable

from case_tables import cases
from opscope.provenance.sources import Definition
from torch_tables.definitions import coarse_type, signature_distance

Read = Callable[..., list[Definition]]


def places(definitions: list[Definition]) -> list[tuple[str, str, int | None, int | None]]:
    return [(row.kind, f"{row.scope}::{row.name}", row.line, row.end_line) for row in definitions]


@cases("text", "expected")
def test_each_definition_has_its_lines(read: Read, text: str, expected: list[list[str | int]]) -> None:
    assert [list(place) for place in places(read(text))] == expected


def test_scopes_lines_and_ends(read: Read) -> None:
    found = read(
        """
        namespace at { namespace native {
        namespace {

        template <typename T>
        struct AddFunctor : Base<T> {
          AddFunctor(T a) : a_{a}, b_(a) {}
          T operator()(T x) const { return x + a_; }
          T a_, b_;
        };

        } // namespace

        Tensor add_cuda(
            const Tensor& self, const Tensor& other = {}) {
          if (self.defined()) {
            return self;
          }
          return other;
        }
        }} // namespace at::native
        """
    )
    functor = "at::native::(anonymous namespace)::AddFunctor"
    assert places(found) == [
        ("class", functor, 5, 9),
        ("function", f"{functor}::AddFunctor", 6, 6),
        ("function", f"{functor}::operator()", 7, 7),
        ("function", "at::native::add_cuda", 13, 19),
    ]
    assert found[0].template_parameters == ("T",)
    assert found[3].parameters == "Tensor, Tensor"


def test_branches_within_a_head(read: Read) -> None:
    found = read(
        """
        template <typename T>
        #if A
        C10_LAUNCH_BOUNDS_1(256)
        #else
        C10_LAUNCH_BOUNDS_2(512, 2)
        #endif
        __global__ void k(T* x) {
        }
        """
    )
    assert places(found) == [("kernel", "::k", 7, 8)]
    assert found[0].template_parameters == ("T",)


class TestMacros:
    def test_kernels_whose_head_is_a_macro(self, read: Read) -> None:
        found = read(
            """
            #define DEFINE_KERNEL(kernelName, ...) \\
              template <typename Traits, __VA_ARGS__> \\
              __global__ void kernelName(const Params params)

            DEFINE_KERNEL(flash_fwd_kernel, bool Is_causal, int N) {
              compute<Traits>(params);
            }
            """
        )
        assert places(found) == [("kernel", "::flash_fwd_kernel", 5, 7)]
        assert found[0].template_parameters == ("Traits", "Is_causal", "N")

    def test_a_list_that_calls_a_macro_for_each_entry(self, read: Read) -> None:
        found = read(
            """
            #define FORALL_TYPES(_) _(float, Float) _(double, Double)
            #define CAST(type, name) Tensor _cast_##name(const Tensor& self) { return self; }
            FORALL_TYPES(CAST)
            """
        )
        assert [row.name for row in found] == ["_cast_Float", "_cast_Double"]

    def test_a_macro_that_uses_itself(self, read: Read) -> None:
        found = read("#define A(x) void x() { } A(x)\nA(f)\nvoid g() {}\n")
        assert [row.name for row in found] == ["f", "g"]

    def test_structured_functions(self, read: Read) -> None:
        found = read(
            """
            namespace at::native {
            TORCH_IMPL_FUNC(softmax_cuda_out) (
              const Tensor &input, const int64_t dim, const bool half_to_float, const Tensor &output) {
              host_softmax(input);
            }
            }
            namespace at::meta { TORCH_META_FUNC(softmax) (const Tensor& input) { } }
            """
        )
        assert places(found) == [
            ("structured", "at::native::softmax_cuda_out", 2, 5),
            ("structured", "at::meta::softmax", 7, 7),
        ]
        assert found[0].parameters == "Tensor, int, bool, Tensor"


def test_stubs_that_a_function_calls(read: Read) -> None:
    found = read(
        """
        DECLARE_DISPATCH(unary_fn, sin_stub);
        DEFINE_DISPATCH(GeluKernel);
        void f() {
          sin_stub(kCPU, x);
          if (a) { GeluKernel(it.device_type(), it); }
          other_stub(x);
        }
        """,
        "a.cpp",
    )
    assert found[-1].stubs == ("GeluKernel", "sin_stub")


@cases("head", "defined")
def test_what_a_brace_opens(read: Read, head: str, defined: str | None) -> None:
    found = [f"{row.kind} {row.scope}::{row.name}" for row in read(f"{head} {{ }};\nint behind;")]
    assert found == ([] if defined is None else [defined])


@cases("head")
def test_kernels_however_their_bounds_are_written(read: Read, head: str) -> None:
    (found,) = read(f"{head} {{\n  f<<<grid, block, 0, stream>>>(x);\n}}\n")
    assert (found.kind, found.name, found.parameters) == ("kernel", "k", "T*")
    assert found.line == head.count("\n") + 1


def test_a_specialization_is_told_from_its_template(read: Read) -> None:
    (*found,) = read(
        """
        template <> void f<int>(int x) {}
        template <class T> struct A<T*> {};
        template <class T> void f(T x) {}
        template <class T> struct A {};
        """
    )
    assert [row.is_specialization for row in found] == [True, True, False, False]


@cases("text", "names")
def test_names_of_template_parameters(read: Read, text: str, names: list[str]) -> None:
    assert read(f"template <{text}> struct A {{}};")[0].template_parameters == tuple(names)


@cases("text", "types")
def test_types_of_parameters_are_without_names_and_defaults(read: Read, text: str, types: str) -> None:
    assert read(f"void f({text}) {{}}")[0].parameters == types


@cases("written", "coarse")
def test_cpp_and_schema_types_become_one_spelling(written: str, coarse: str) -> None:
    assert coarse_type(written) == coarse


def test_an_alias_may_be_any_type() -> None:
    assert signature_distance("Tensor, simple_hx_type", ["Tensor", "Tensor"]) == 1


def test_what_follows_macros_or_texts_is_read(read: Read) -> None:
    found = read("const auto s = jiterator_stringify(\n template <class T> T f(T x) { }\n);\nvoid g() {}")
    assert places(found) == [("function", "::g", 4, 4)]
    found = read(
        "namespace at {\nAT_INSTANTIATE_SORT(int, 1)\nAT_INSTANTIATE_SORT(long, 2)\nvoid f() {}\n}\n"
    )
    assert places(found) == [("function", "at::f", 4, 4)]
