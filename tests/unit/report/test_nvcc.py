"""A compiled file as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from opscope.analysis.compiled_file import CompiledFile, examine_compilation
from opscope.hardware.architectures import Target
from opscope.kernels.ptx import FunctionUse
from opscope.nvcc.command import BuildProduct, Nvcc
from opscope.nvcc.compile import Compilation, CompiledKernel, Request
from opscope.report.json_encoding import to_json
from opscope.report.nvcc import NvccCode, nvcc_document, nvcc_json

from .conftest import text_of

COMMAND = ("/usr/bin/nvcc", "-gencode=arch=compute_90,code=sm_90", "-o", "add", "add.cu")
SASS = NvccCode("add(float*)", "sm_90", "sass", "/*0000*/ EXIT ;")


def kernel(target: Target, registers: int, constant_bytes: int | None) -> CompiledKernel:
    use = FunctionUse("_Z3addPf", target.name, True, 16, 12, 8, registers=registers, shared_bytes=512)
    return CompiledKernel("add(float*)", target, use, constant_bytes, None, None)


def compiled(*kernels: CompiledKernel, ptx: Target | None = None, said: str = "") -> CompiledFile:
    targets = tuple(dict.fromkeys(one.target for one in kernels)) or (Target(9, 0),)
    request = Request(Path("add.cu"), Path("add"), BuildProduct.PROGRAM, targets, ptx)
    compilation = Compilation(request, Nvcc("nvcc", "13.0", "13.0.88", targets), kernels, said=said)
    return examine_compilation(compilation)


FILES = {
    "command, targets, numbers and limiters": compiled(
        kernel(Target(9, 0), 128, 552), kernel(Target(9, 0, "a"), 32, None)
    ),
    "a block that cannot start, a GPU that is not known": compiled(
        kernel(Target(9, 0), 255, 552), kernel(Target(8, 8), 16, 552)
    ),
    "one target": compiled(kernel(Target(8, 6), 16, 1)),
    "targets and PTX": compiled(kernel(Target(8, 0), 16, 1), kernel(Target(9, 0), 16, 1), ptx=Target(9, 0)),
    "one architecture's own features": compiled(kernel(Target(9, 0, "a"), 16, 1)),
    "what the compiler said": compiled(
        kernel(Target(9, 0), 16, 1), said="add.cu(4): warning #69-D: truncation"
    ),
    "no kernels": compiled(),
}


def test_reports(expect):
    expect("nvcc.txt", text_of({name: nvcc_document(one, COMMAND, [SASS]) for name, one in FILES.items()}))


def test_the_json_has_every_number_and_null_for_what_is_unknown():
    file = compiled(kernel(Target(9, 0), 128, None), ptx=Target(9, 0), said="warning")
    document = json.loads(to_json(nvcc_json(file, COMMAND, codes=[SASS], output="add", exit_code=7)))
    (one,) = document["kernels"]
    assert (one["registers"], one["constant_bytes"], one["spill_store_bytes"]) == (128, None, 12)
    assert one["occupancy"][0] == {
        "threads": 128, "blocks_per_sm": 4, "warps_per_sm": 16, "occupancy": 0.25,
        "limited_by": ["registers"],
    }  # fmt: skip
    assert one["best_block"]["threads"] == 512
    assert (document["ptx"], document["exit_code"], document["output"]) == ("compute_90", 7, "add")
    assert document["code"] == [SASS._asdict()]
    assert [one["code"] for one in document["findings"]] == ["nvcc.spills"]
    assert document["compiler_output"] == "warning"
