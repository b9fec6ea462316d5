"""A compiled file as text and as JSON."""

import json
from pathlib import Path

from opscope.hardware.architectures import Target
from opscope.nvcc.compile import Compilation, KernelResources, Nvcc, Request, compiled_kernel
from opscope.report.json_encoding import to_json
from opscope.report.nvcc import nvcc_document, nvcc_json

from .conftest import text_of

COMMAND = ("/usr/bin/nvcc", "-gencode=arch=compute_90,code=sm_90", "-o", "add", "add.cu")


def compiled(*kernels, ptx=None, said=""):
    """A file of kernels with targets, registers and bytes of constants."""
    targets = tuple(dict.fromkeys(target for target, _, _ in kernels)) or (Target(9, 0),)
    request = Request(Path("add.cu"), Path("add"), True, targets, ptx)
    made = []
    for target, registers, constant_bytes in kernels:
        use = KernelResources(
            "_Z3addPf", target.name, 16, 12, 8, registers=registers, shared_bytes=512,
            constant_bytes={} if constant_bytes is None else {0: constant_bytes},
        )  # fmt: skip
        made.append(compiled_kernel(request, use, target))
    return Compilation(request, Nvcc("nvcc", "13.0", "13.0.88", targets), tuple(made), said=said)


FILES = {
    "command, targets, numbers and limiters": compiled(
        (Target(9, 0), 128, 552), (Target(9, 0, "a"), 32, None)
    ),
    "a block that cannot start, a GPU that is not known": compiled(
        (Target(9, 0), 255, 552), (Target(8, 8), 16, 552)
    ),
    "one target": compiled((Target(8, 6), 16, 1)),
    "targets and PTX": compiled((Target(8, 0), 16, 1), (Target(9, 0), 16, 1), ptx=Target(9, 0)),
    "one architecture's own features": compiled((Target(9, 0, "a"), 16, 1)),
    "what the compiler said": compiled((Target(9, 0), 16, 1), said="add.cu(4): warning #69-D: truncation"),
    "no kernels": compiled(),
}


def test_reports(expect):
    expect("nvcc.txt", text_of({name: nvcc_document(one, COMMAND) for name, one in FILES.items()}))


def test_the_json_has_every_number_and_null_for_what_is_unknown():
    file = compiled((Target(9, 0), 128, None), ptx=Target(9, 0), said="warning")
    document = json.loads(to_json(nvcc_json(file, COMMAND, output="add")))
    (one,) = document["kernels"]
    assert (one["registers"], one["constant_bytes"], one["spill_store_bytes"]) == (128, None, 12)
    assert one["occupancy"][0] == {
        "threads": 128, "blocks_per_sm": 4, "warps_per_sm": 16, "occupancy": 0.25,
        "limited_by": ["registers"],
    }  # fmt: skip
    assert one["best_block"]["threads"] == 512
    assert (document["ptx"], document["output"]) == ("compute_90", "add")
    assert [one["code"] for one in document["findings"]] == ["nvcc.spills"]
    assert document["compiler_output"] == "warning"
