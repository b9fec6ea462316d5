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


@pytest.mark.parametrize(
    ("head", "defined"),
    [
        ("struct Foo", "class ::Foo"),
        ("struct alignas(16) TORCH_API Foo final : Bar<void(int)>", "class ::Foo"),
        ("template <> class Foo<int, 3> : public Base", "class ::Foo"),
        ("template <> struct std::hash<Foo>", "class std::hash"),
        ("template <class T> struct Foo<T, enable_if<T::value >= 80>::type>", "class ::Foo"),
        ("struct __align__(8) Foo", "class ::Foo"),
        ("class [[nodiscard]] Foo", "class ::Foo"),
        ("void f()", "function ::f"),
        ("void f(int x) const noexcept(true) override", "function ::f"),
        ("auto f(int x) -> std::vector<int>", "function ::f"),
        ("at::Tensor& at::native::f_out(const Tensor& x)", "function at::native::f_out"),
        ("template <class T> template <int N> void Foo<T>::bar()", "function Foo::bar"),
        ("struct Foo make_foo(int x)", "function ::make_foo"),
        ("std::function<void(int)> f(int (*g)(int))", "function ::f"),
        ("decltype(auto) f()", "function ::f"),
        ("bool operator<(const A& a, const B& b)", "function ::operator<"),
        ("Foo& Foo::operator=(Foo&& other)", "function Foo::operator="),
        ("Foo::operator bool() const", "function Foo::operatorbool"),
        ("Foo::operator c10::List<int>() const", "function Foo::operatorc10::List<int>"),
        ("Foo::~Foo()", "function Foo::~Foo"),
        ("Foo::Foo() : a(1), b(2)", "function Foo::Foo"),
        ("static C10_DEVICE inline T f(T a) __ubsan_ignore_undefined__", "function ::f"),
        ("template <> void f<int>(int x)", "function ::f"),
        ("__attribute__((unused)) void f(A a = {}, int x = 1)", "function ::f"),
        ("template <bool B = (a < b), class T = X<Y<int>>> void f(T x)", "function ::f"),
        ("TORCH_META_FUNC2(add, Tensor) (const Tensor& x, int64_t dim)", "structured at::meta::add.Tensor"),
        ("enum class Foo : int", None),
        ("int a[] =", None),
        ("auto f = [](int x)", None),
        ("TEST(Foo, Bar)", None),
        ("TORCH_LIBRARY_IMPL(aten, CUDA, m)", None),
        ("void (*fp)(int) =", None),
    ],
)
def test_what_a_brace_opens(read: Read, head: str, defined: str | None) -> None:
    found = [f"{row.kind} {row.scope}::{row.name}" for row in read(f"{head} {{ }};\nint behind;")]
    assert found == ([] if defined is None else [defined])


@pytest.mark.parametrize(
    "head",
    [
        "__global__ void k(T* x)",
        "C10_LAUNCH_BOUNDS_1(512)\n__global__ void k(T* x)",
        "template <class T> __global__ void C10_LAUNCH_BOUNDS_2(256, 4) k(T* x)",
        "__global__ void __launch_bounds__(A<float, 64>::kThreads, A<float>::kBlocks) k(T* x)",
        "static __global__ __launch_bounds__(32) void k(T* x)",
        'extern "C" __global__ void k(T* x)',
        "template <typename T,\n  int N>\nC10_LAUNCH_BOUNDS_1(num_threads())\n__global__ void k(T* x)",
    ],
)
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


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("class T, int N = 4, bool B", ("T", "N", "B")),
        ("typename, int", ("", "")),
        ("typename... Ts", ("Ts...",)),
        ("typename ...", ("...",)),
        ("int nt, int vt, typename func_t = A<B, C>", ("nt", "vt", "func_t")),
        ("template <typename> class Op, typename T", ("Op", "T")),
        ("typename T, typename std::enable_if<(N > 3), int>::type = 0", ("T", "")),
        ("typename T, std::enable_if_t<is_x<T>, bool> = true", ("T", "")),
        ("void (*fn)(int), auto V", ("fn", "V")),
        ("const char* name", ("name",)),
        ("std::size_t N, std::size_t", ("N", "")),
        ("unsigned int bits, unsigned int", ("bits", "")),
    ],
)
def test_names_of_template_parameters(read: Read, text: str, names: tuple[str, ...]) -> None:
    assert read(f"template <{text}> struct A {{}};")[0].template_parameters == names


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("const Tensor& a, std::array<bool, 2> m, int64_t n = f(1, 2)", "Tensor, bool[], int"),
        ("::std::optional<c10::SymInt> dim = std::nullopt, double p = 0.5", "int?, float"),
        ("char **data, [[maybe_unused]] bool x, unsigned int", "char**, bool, unsignedint"),
        ("void (*f)(int), Args&&... args", "void(*)(int), Args..."),
        ("void", ""),
        ("", ""),
    ],
)
def test_types_of_parameters_are_without_names_and_defaults(read: Read, text: str, types: str) -> None:
    assert read(f"void f({text}) {{}}")[0].parameters == types


def test_texts_for_another_compiler_define_nothing(read: Read) -> None:
    found = read("const auto s = jiterator_stringify(\n template <class T> T f(T x) { }\n);\nvoid g() {}")
    assert places(found) == [("function", "::g", 4, 4)]


def test_what_follows_a_macro_without_a_semicolon(read: Read) -> None:
    found = read(
        "namespace at {\nAT_INSTANTIATE_SORT(int, 1)\nAT_INSTANTIATE_SORT(long, 2)\nvoid f() {}\n}\n"
    )
    assert places(found) == [("function", "at::f", 4, 4)]


def test_what_follows_objective_c(read: Read) -> None:
    found = read("@interface A ()\n- (void)f;\n@end\nvoid A::g() { [x f]; }\n", "a.mm")
    assert places(found) == [("function", "A::g", 4, 4)]
