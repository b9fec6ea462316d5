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
from opscope.report.markdown import render_markdown
from opscope.report.nvcc import NvccCode, nvcc_document, nvcc_json

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


def text(file: CompiledFile, *codes: NvccCode) -> str:
    return render_markdown(nvcc_document(file, COMMAND, codes))


def test_the_report_has_command_targets_numbers_and_limiters():
    shown = text(compiled(kernel(Target(9, 0), 128, 552), kernel(Target(9, 0, "a"), 32, None)))
    assert "nvcc -gencode arch=compute_90,code=sm_90 -o add add.cu" in shown
    assert "sm_90 (Hopper), sm_90a (Hopper)" in shown
    assert "| 128 | 512 B | 16 B | 12 B | 8 B | 552 B |" in shown
    assert "| 32 | 512 B | 16 B | 12 B | 8 B | – |" in shown
    assert "25.0 % (registers)" in shown


def test_a_block_that_cannot_start_and_a_gpu_that_is_not_known_are_told():
    shown = text(compiled(kernel(Target(9, 0), 255, 552), kernel(Target(8, 8), 16, 552)))
    assert "cannot start" in shown
    assert "No occupancy: the limits of compute capability 8.8 are not known here." in shown


def test_what_runs_where_follows_from_targets_and_ptx():
    alone = text(compiled(kernel(Target(8, 6), 16, 1)))
    assert "compute capability 8.6 and later 8.x; not on newer GPUs: ptx" in alone
    both = text(compiled(kernel(Target(8, 0), 16, 1), kernel(Target(9, 0), 16, 1), ptx=Target(9, 0)))
    assert "compute capability 8.x, 9.x; from 9.0 on also on any newer one" in both
    specific = text(compiled(kernel(Target(9, 0, "a"), 16, 1)))
    assert "compute capability 9.0 alone; not on newer GPUs" in specific
    assert "adds PTX" not in specific


def test_what_the_compiler_said_and_code_have_sections_of_their_own():
    shown = text(compiled(kernel(Target(9, 0), 16, 1), said="add.cu(4): warning #69-D: truncation"), SASS)
    assert "## Compiler" in shown
    assert "add.cu(4): warning #69-D: truncation" in shown
    assert "/*0000*/ EXIT ;" in shown


def test_a_file_without_kernels_says_so():
    assert "The file has no kernels" in text(compiled())


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
