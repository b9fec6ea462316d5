"""What the index reads of files: definitions, a tree, the headers of a wheel."""

import pytest

from case_tables import cases
from opscope.errors import InputError
from opscope.provenance.sources import read_lines
from torch_tables.definitions import coarse_type, signature_distance, tree_index


def places(definitions):
    return [(row.kind, f"{row.scope}::{row.name}", row.line, row.end_line) for row in definitions]


@cases("text", "expected", "template", "parameters")
def test_each_definition_has_its_lines(read, text, expected, template, parameters):
    found = read(text)
    assert [list(place) for place in places(found)] == expected
    assert template is None or list(found[0].template_parameters) == template
    assert parameters in (None, [row.parameters for row in found])


@cases("head", "defined")
def test_what_a_brace_opens(read, head, defined):
    found = [f"{row.kind} {row.scope}::{row.name}" for row in read(f"{head} {{ }};\nint behind;")]
    assert found == ([] if defined is None else [defined])


@cases("head")
def test_kernels_however_their_bounds_are_written(read, head):
    (found,) = read(f"{head} {{\n  f<<<grid, block, 0, stream>>>(x);\n}}\n")
    assert (found.kind, found.name, found.parameters) == ("kernel", "k", "T*")
    assert found.line == head.count("\n") + 1


def test_a_specialization_is_told_from_its_template(read):
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
def test_names_of_template_parameters(read, text, names):
    assert read(f"template <{text}> struct A {{}};")[0].template_parameters == tuple(names)


@cases("text", "types")
def test_types_of_parameters_are_without_names_and_defaults(read, text, types):
    assert read(f"void f({text}) {{}}")[0].parameters == types


@cases("written", "coarse")
def test_cpp_and_schema_types_become_one_spelling(written, coarse):
    assert coarse_type(written) == coarse


def test_an_alias_may_be_any_type():
    assert signature_distance("Tensor, simple_hx_type", ["Tensor", "Tensor"]) == 1


FILE = "aten/src/ATen/native/cuda/A.cu"


def test_a_checkout(checkout):
    root = checkout(
        {
            FILE: "#include <ATen/M.h>\nDEFINE(f)\n",
            "aten/src/ATen/M.h": "#define DEFINE(x) void x() { }\n",
            "aten/src/ATen/native/mps/M.mm": "void in_metal() {}",
            "aten/src/ATen/test/T.cu": "void in_test() {}",
            "aten/src/ATen/native/vulkan/V.cpp": "void in_vulkan() {}",
            "aten/src/ATen/notes.txt": "void in_text() {}",
            "docs/a.cu": "void in_docs() {}",
        }
    )
    index = tree_index(root, "2.9.1", "b" * 40)
    assert (index.version, index.git_version) == ("2.9.1", "b" * 40)
    assert [(row.name, row.file, row.line) for row in index] == [("f", FILE, 2)]


def test_what_is_no_tree_or_has_no_headers(tmp_path):
    with pytest.raises(InputError, match="not a PyTorch source tree"):
        tree_index(tmp_path, "2.6.0", None)
    with pytest.raises(InputError, match="no ATen headers"):
        tree_index(tmp_path, "2.13.0", None, headers=True)


HEADER = "include/ATen/native/cuda/Loops.cuh"
KERNEL = "namespace at::native {\ntemplate <class T>\n__global__ void run(T f) {\n}\n}\n"


@pytest.fixture
def torch(checkout):
    return checkout(
        {
            HEADER: KERNEL,
            "include/ATen/ops/add.h": "void generated() {}",
            "include/ATen/cuda/CUDAConfig.h": "void generated() {}",
            "include/torch/csrc/utils.h": "void elsewhere() {}",
        }
    )


def test_headers_are_named_as_in_the_repository(torch):
    index = tree_index(torch / "include", "2.13.0", None, headers=True)
    assert index.files == ("aten/src/ATen/native/cuda/Loops.cuh",)
    found = index.kernel("at::native::run", ["Any.cu"])
    assert (found.line, found.end_line, found.template_parameters) == (3, 4, ("T",))
    assert read_lines(found.file, 3, None, [torch / "include"]) == ["__global__ void run(T f) {"]


def test_lines_are_those_of_the_repository_where_the_wheel_adds_one(torch):
    guard = "#if !defined(TORCH_STABLE_ONLY) && !defined(TORCH_TARGET_VERSION)"
    (torch / HEADER).write_text(f'{guard}\n{KERNEL}#else\n#error "no"\n#endif\n', encoding="utf-8")
    found = tree_index(torch / "include", "2.13.0", None, headers=True).kernel("at::native::run", ["Any.cu"])
    assert (found.line, found.end_line) == (3, 4)
    assert read_lines(found.file, 3, None, [torch / "include"]) == ["__global__ void run(T f) {"]
