"""What an extracted call's own version starts with computes the call, in Triton's interpreter."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from case_tables import cases, tables
from opscope.errors import InputError
from opscope.extraction.call_file import Fed, call_file
from opscope.extraction.starts import StartKind
from opscope.operators.arguments import parse_arguments

# A torch that finds a GPU would have Triton compile.
RUN_ALL = """
import runpy, sys
for file in sys.argv[1:]:
    print(file, flush=True)
    runpy.run_path(file, run_name="__main__")
"""

# Each works on the result before it.
CHAIN = [
    ["mul", [[4, 1], [4, 1]], ["float", "float"], [[1, 1], [1, 1]], ["", ""]],
    ["add", [[4, 1], [4, 6], []], ["float", "float", "Scalar"], [[1, 1], [6, 1], []], ["", "", "2"]],
    ["where", [[4, 6], [], [4, 6]], ["bool", "double", "float"], [[6, 1], [], [6, 1]], ["", "", ""]],
]


def call(name, *columns):
    """Shapes, types, strides and values, by argument."""
    keys = ("shapes", "types", "strides", "concrete")
    return parse_arguments(f"aten::{name}", **dict(zip(keys, columns, strict=False)))


def text_of(given, start):
    return call_file(call(*given), what="A call.", name="call.py", start=start).text


@pytest.mark.torch
def test_a_start_computes_the_call(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    rows = tables(Path(__file__).with_suffix(".toml"))["a_start_computes_the_call"]
    files = [tmp_path / f"{number}_{given[0]}.py" for number, (given,) in enumerate(rows)]
    for file, (given,) in zip(files, rows, strict=True):
        file.write_text(text_of(given, StartKind.TRITON))
        assert "tl.store" in file.read_text()
    first, second, third = (call(*given) for given in CHAIN)
    then = [Fed(second, "self"), Fed(third, "other")]
    files.append(tmp_path / "chain.py")
    files[-1].write_text(call_file(first, what="", name="", start=StartKind.TRITON, then=then).text)
    assert "r2 = torch.ops.aten.add(r1, other_, alpha=2)" in files[-1].read_text()
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, *files],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.stdout.count("mine computes what the reference does") == len(files), (
        done.stdout.splitlines()[-1] + done.stderr
    )


@cases("given")
def test_cuda_compiles(given, tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    text = text_of(given, StartKind.CUDA)
    compile(text, "call.py", "exec")
    source = tmp_path / "start.cu"
    source.write_text("#include <cstdint>\n" + text.partition('r"""')[2].partition('"""')[0])
    # As torch compiles extensions.
    options = ["-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__", "-std=c++17"]
    subprocess.run([nvcc, *options, "-c", source, "-o", tmp_path / "start.o"], check=True)


@cases("given", "start")
def test_there_is_no_such_template(given, start):
    with pytest.raises(InputError, match=f"no template in {start}"):
        text_of(given, StartKind(start))
    assert "reference(" in text_of(given, None).partition("def mine")[2] or start == "cuda"


def test_an_element_is_found_by_its_strides():
    """A transposed operand and one that is broadcast, in the memory order of the result."""
    given = ["add", [[3, 4], [4], []], ["float", "float", "Scalar"], [[1, 3], [1], []], ["", "", "1"]]
    text = text_of(given, StartKind.TRITON)
    assert "tl.load(self_ptr + i, " in text
    assert "tl.load(other_ptr + i // 3, " in text
    assert "torch.empty_strided((3, 4), (1, 3), " in text
