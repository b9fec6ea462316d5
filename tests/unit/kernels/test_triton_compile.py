"""What the Triton kernels become for sm_90, seen without a GPU: width of accesses, tensor cores."""

import os

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")
pytest.importorskip("triton.tools.tensor_descriptor")  # the form of ASTSource used here is as old

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from opscope.kernels.triton import load_triton  # noqa: E402

ALIGNED = [["tt.divisibility", 16]]

pytestmark = [
    pytest.mark.exhaustive(few=False),  # seconds of a compiler
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1",
        reason="test_triton_loader runs these where Triton compiles",
    ),
]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is unset


def ptx(kernel, types, constants, *, unaligned=(), **options):
    """PTX for sm_90 of a kernel whose pointers and integers are multiples of 16, except some."""
    while not isinstance(kernel, triton.JITFunction):
        kernel = kernel.fn
    names = kernel.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    aligned = [name for name, kind in types.items() if kind[0] in "*i" and name not in unaligned]
    source = ASTSource(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): ALIGNED for name in aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


def accesses(text, what):
    """Global loads or stores of 16 bytes, and all."""
    lines = [line for line in text.splitlines() if f"{what}.global" in line]
    return sum(".v4.b32" in line or ".v2.b64" in line for line in lines), len(lines)


@pytest.mark.parametrize(("dtype", "element_bytes"), [("fp32", 4), ("bf16", 2)])
def test_the_good_elementwise_kernels_read_and_write_16_bytes_at_a_time(dtype, element_bytes):
    module = load_triton("elementwise")
    types = {"x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", "out_ptr": f"*{dtype}", "size": "i32"}
    config = next(one for one in module.CONFIGS if one.kwargs["BLOCK"] * element_bytes >= 512 * one.num_warps)
    constants = {"OPERATOR": "square", **config.kwargs}
    text = ptx(module.elementwise_kernel, types, constants, num_warps=config.num_warps)
    for what in ("ld", "st"):
        wide, every = accesses(text, what)
        assert wide == every > 0


def test_the_teaching_kernel_has_one_element_per_thread_and_full_programs_stay_wide_for_any_size():
    module = load_triton("elementwise")
    types = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "size": "i32"}
    text = ptx(module.teaching_kernel, types, {"OPERATOR": "square", "BLOCK": 128}, num_warps=4)
    assert (accesses(text, "ld"), accesses(text, "st")) == ((0, 1), (0, 1))
    constants = {"OPERATOR": "add", **module.CONFIGS[0].kwargs}
    text = ptx(module.elementwise_kernel, types, constants, unaligned=("size",), num_warps=4)
    assert accesses(text, "ld")[0] > 0


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_rows_are_read_once_and_in_16_bytes(name):
    pointers = ["x_ptr", "out_ptr", *(["weight_ptr", "bias_ptr"] if name == "layer_norm" else [])]
    types = dict.fromkeys(pointers, "*fp32") | {"row_count": "i32", "column_count": "i32"}
    if name == "layer_norm":
        types["eps"] = "fp32"
    constants = {"COLUMNS": 8192, "TILE": 8192}
    text = ptx(getattr(load_triton(name), f"{name}_kernel"), types, constants, num_warps=8)
    row = 8192 // (8 * 32 * 4)  # 16-byte accesses of a thread to its part of a row
    assert accesses(text, "st") == (row, row)
    assert accesses(text, "ld") == (row * (len(pointers) - 1),) * 2


def test_matrix_products_use_the_tensor_cores_and_the_copy_engine():
    module = load_triton("matmul")
    constants = module.DESCRIPTOR_CONFIGS[0].kwargs
    rows, columns, depth = (constants[name] for name in ("BM", "BN", "BK"))
    types = {
        "a_desc": f"tensordesc<bf16[{rows},{depth}]>",
        "b_desc": f"tensordesc<bf16[{depth},{columns}]>",
        "c_desc": f"tensordesc<bf16[{rows},{columns}]>",
        **dict.fromkeys("MNK", "i32"),
    }
    text = ptx(module.matmul_descriptor_kernel, types, constants, num_warps=8, num_stages=3)
    assert "wgmma.mma_async" in text
    assert "cp.async.bulk.tensor" in text


def test_what_is_only_read_is_loaded_in_16_bytes_past_the_first_cache():
    module = load_triton("streaming")
    integers = ("chunk_count", "reads", "first_step", "next_step")
    types = {"source_ptr": "*fp32", "sums_ptr": "*fp32", **dict.fromkeys(integers, "i32")}
    text = ptx(
        module.read_chunks_kernel, types, {"CHUNK": module.CHUNK}, unaligned=integers, num_warps=module.WARPS
    )
    loads = [line.split()[0] for line in text.splitlines() if "ld.global" in line]
    assert set(loads) == {"ld.global.cg.v4.b32"}
    assert len(loads) == module.CHUNK // (4 * 32 * module.WARPS)  # all of them before the first is used
