import pytest

from opscope.errors import InputError
from opscope.provenance.sources import read_lines
from torch_tables.definitions import tree_index

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
