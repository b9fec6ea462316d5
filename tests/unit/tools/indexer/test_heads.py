from __future__ import annotations

import pytest

from torch_tables.indexer.heads import read_head


@pytest.mark.parametrize(
    ("head", "kind", "name"),
    [
        ("namespace at::native", "namespace", "at::native"),
        ("namespace", "namespace", "(anonymous namespace)"),
        ("inline namespace CPU_CAPABILITY", "namespace", "CPU_CAPABILITY"),
        ('extern " "', "linkage", ""),
        ("struct Foo", "class", "Foo"),
        ("struct alignas(16) TORCH_API Foo final : Bar<void(int)>", "class", "Foo"),
        ("template <> class Foo<int, 3> : public Base", "class", "Foo"),
        ("struct __align__(8) Foo", "class", "Foo"),
        ("class [[nodiscard]] Foo", "class", "Foo"),
        ("typedef struct", "opaque", ""),
        ("enum class Foo : int", "opaque", ""),
        ("int a[] =", "opaque", ""),
        ("int a", "opaque", ""),
        ("", "opaque", ""),
        ("auto f = [](int x)", "opaque", ""),
        ("TEST(Foo, Bar)", "opaque", ""),
        ("TORCH_LIBRARY_IMPL(aten, CUDA, m)", "opaque", ""),
        ("REGISTER(a, [](int x)", "initializer", ""),
        ("void f(int x =", "initializer", ""),
        ("Foo() : a(1), b", "initializer", ""),
        ("Foo() : Base<int>", "initializer", ""),
        ("Foo() : a(1), b(2)", "function", "Foo"),
        ("void f()", "function", "f"),
        ("void f(int x) const noexcept(true) override", "function", "f"),
        ("auto f(int x) -> std::vector<int>", "function", "f"),
        ("at::Tensor& at::native::f_out(const Tensor& x) try", "function", "at::native::f_out"),
        ("template <class T> template <int N> void Foo<T>::bar()", "function", "Foo::bar"),
        ("struct Foo make_foo(int x)", "function", "make_foo"),
        ("std::function<void(int)> f(int (*g)(int))", "function", "f"),
        ("decltype(auto) f()", "function", "f"),
        ("bool operator<(const A& a, const B& b)", "function", "operator<"),
        ("bool operator()(int x) const", "function", "operator()"),
        ("template <> void operator()<A<int>>(int x) const", "function", "operator()"),
        ("Foo& Foo::operator=(Foo&& other)", "function", "Foo::operator="),
        ("operator bool() const", "function", "operatorbool"),
        ("Foo::~Foo()", "function", "Foo::~Foo"),
        ("static C10_DEVICE inline T f(T a) __ubsan_ignore_undefined__", "function", "f"),
        ("template <> void f<int>(int x)", "function", "f"),
        ("public: void f()", "function", "f"),
        ("__attribute__((unused)) void f()", "function", "f"),
        ("FOO(a) FOO(b) void f(int x)", "function", "f"),
        ("template <bool B = (a < b), class T = X<Y<int>>> void f(T x)", "function", "f"),
        ("void (*fp)(int) =", "opaque", ""),
    ],
)
def test_what_a_brace_opens(head: str, kind: str, name: str) -> None:
    found = read_head(head)
    assert (found.kind, found.name) == (kind, name)


@pytest.mark.parametrize(
    "head",
    [
        "__global__ void k(T* x)",
        "C10_LAUNCH_BOUNDS_1(512)\n__global__ void k(T* x)",
        "template <class T> __global__ void C10_LAUNCH_BOUNDS_2(256, 4) k(T* x)",
        "__global__ void __launch_bounds__(A<float, 64>::kThreads, A<float>::kBlocks) k(T* x)",
        "static __global__ __launch_bounds__(32) void k(T* x)",
        'extern " " __global__ void k(T* x)',
        "template <typename T,\n  int N>\nC10_LAUNCH_BOUNDS_1(num_threads())\n__global__ void k(T* x)",
    ],
)
def test_kernels_however_their_bounds_are_written(head: str) -> None:
    found = read_head(head)
    assert (found.kind, found.name, found.parameters) == ("kernel", "k", "T*")
    assert head[found.offset :].startswith("k(")


@pytest.mark.parametrize(
    ("head", "name", "scope"),
    [
        ("TORCH_IMPL_FUNC(softmax_cuda_out)\n(const Tensor& x, int64_t dim)", "softmax_cuda_out", ""),
        ("TORCH_META_FUNC(softmax) (const Tensor& x, int64_t dim)", "softmax", "at::meta"),
        ("TORCH_META_FUNC2(add, Tensor) (const Tensor& x, int64_t dim)", "add.Tensor", "at::meta"),
    ],
)
def test_functions_named_in_a_macro(head: str, name: str, scope: str) -> None:
    found = read_head(head)
    assert (found.kind, found.name, found.scope) == ("structured", name, scope)
    assert found.parameters == "Tensor, int"


def test_a_specialization_is_told_from_its_template() -> None:
    assert read_head("template <> void f<int>(int x)").is_specialization
    assert read_head("template <class T> struct A<T*>").is_specialization
    assert not read_head("template <class T> void f(T x)").is_specialization
    assert not read_head("template <class T> struct A").is_specialization
