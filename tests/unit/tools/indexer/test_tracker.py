from __future__ import annotations

from collections.abc import Callable

import pytest

from opscope.provenance.sources.index import Definition

Read = Callable[..., list[Definition]]


def places(definitions: list[Definition]) -> list[tuple[str, str, int | None, int | None]]:
    return [(row.kind, f"{row.scope}::{row.name}", row.line, row.end_line) for row in definitions]


FOUND = {
    "lambdas and initializers do not end a function": (
        """
        static const int table[] = {1, 2, 3};
        static auto registered = registry.add("x", [](int x) { return x; });
        std::vector<int> values{1, 2};
        void f() {
          auto g = [&](int x) { return Foo{x}; };
          launch(g, [=] __device__ (int i) { if (i) { a[i] = i; } });
        }
        enum class E { A, B };
        void h() {}
        """,
        [("function", "::f", 4, 7), ("function", "::h", 9, 9)],
    ),
    "members defined outside their class": (
        "namespace c10d {\nvoid Store<int>::Key::set(int x) {\n}\n}",
        [("function", "c10d::Store::Key::set", 2, 3)],
    ),
    "error stubs give way to the real function": (
        """
        #if SOMETHING_ENABLED()
        Tensor f(const Tensor& x) { return compute(x); }
        #else
        Tensor f(const Tensor& x) { TORCH_CHECK(false, "not compiled"); }
        Tensor g(const Tensor& x) { TORCH_CHECK(false, "not compiled"); }
        #endif
        """,
        [("function", "::f", 2, 2), ("function", "::g", 5, 5)],
    ),
    "branches that open one function twice": (
        """
        #ifdef A
        void f(int x) {
        #else
        void f(long x) {
        #endif
          g();
        }
        void h() {}
        """,
        [
            ("function", "::f", 2, 7),
            ("function", "::f", 4, 7),
            ("function", "::h", 8, 8),
        ],
    ),
    "branches with braces that do not match": (
        """
        void f() {
        #if A
          if (x) {
        #else
          while (y) {
        #endif
          }
        }
        void g() {}
        """,
        [("function", "::f", 1, 8), ("function", "::g", 9, 9)],
    ),
    "namespaces of one build only": (
        """
        #ifdef CPU_CAPABILITY
        inline namespace CPU_CAPABILITY {
        #else
        inline namespace DEFAULT {
        #endif
        void f() {}
        }
        void g() {}
        """,
        [("function", "CPU_CAPABILITY::f", 6, 6), ("function", "::g", 8, 8)],
    ),
    "dead branches hold nothing": (
        "#ifdef USE_ROCM\nvoid f() {\n#else\nvoid g() {\n#endif\n}\n",
        [("function", "::g", 4, 6)],
    ),
    "functions defined by a macro are where it is used": (
        """
        #define UNARY(op, ...)                                   \\
          Tensor& op##_out_cuda(const Tensor& self, Tensor& out) { \\
            return run(#op, self, out, __VA_ARGS__);              \\
          }                                                      \\
          DEFINE_DISPATCH(op##_stub);
        namespace at::native {
        UNARY(sin, 1)
        UNARY(cos, 2, 3)
        }
        """,
        [
            ("function", "at::native::sin_out_cuda", 7, 7),
            ("stub", "at::native::sin_stub", 7, 7),
            ("function", "at::native::cos_out_cuda", 8, 8),
            ("stub", "at::native::cos_stub", 8, 8),
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), FOUND.values(), ids=FOUND)
def test_each_definition_has_its_lines(
    read: Read, text: str, expected: list[tuple[str, str, int, int]]
) -> None:
    assert places(read(text)) == expected


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

    def test_no_expansion_takes_exponential_time(self, read: Read) -> None:
        calls = [f"#define M{level}(x) " + f"M{level + 1}(x) " * 40 + "{ }" for level in range(30)]
        assert read("\n".join([*calls, "M0(1)", "void f() {}"]))[-1].name == "f"

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
