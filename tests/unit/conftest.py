"""Small examples of what torch.compile generates, laid out as it lays them out."""

import json
import warnings
from pathlib import Path

import pytest

import opscope
from opscope.analysis import explanation
from opscope.provenance.generated_code import source_hash

KERNEL = Path(__file__).with_name("generated_kernel.py.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def torch():
    """PyTorch, imported without its warnings about the machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def example():
    """The packaged recording: BERT on an H200, by PyTorch 2.11."""
    with opscope.load(opscope.example_trace()) as session:
        yield session


@pytest.fixture(scope="module")
def releases_read_once():
    """What is known of all functions of a release, which takes a second, is gathered once per module."""
    gather, known = explanation._all_functions, {}

    def once(asked):
        about = (asked.version, asked.summary and asked.summary.torch_version_grade)
        if about not in known:
            known[about] = gather(asked)
        return known[about]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explanation, "_all_functions", once)
        yield


@pytest.fixture
def kernel_text():
    """The source of one generated kernel; the text of its file."""

    def make(name, *, heuristic="pointwise", body="tl.store(out_ptr0 + xoffset, 1)"):
        return KERNEL.format(name=name, heuristic=heuristic, body=body)

    return make


@pytest.fixture
def graph_text():
    """The code of one graph that defines kernels and launches each once, after a call of no kernel.

    Takes the graph's id, and per kernel its text and the comments above its definition and its launch.
    """

    def make(graph, kernels, *, nodes="h, h_1", aten="aten.gelu, prims.x"):
        lines = [f"# AOT ID: ['{graph}']", "import torch", "async_compile = AsyncCompile()", ""]
        comment = f"# Topologically Sorted Source Nodes: [{nodes}], Original ATen: [{aten}]"
        for name, text in kernels.items():
            lines += [
                f"# kernel path: /cache/ab/{source_hash(text)}.py",
                comment,
                "# Source node to ATen node mapping:",
            ]
            lines += [f"#   {node} => add" for node in nodes.split(", ")]
            lines += [f"{name} = async_compile.triton('{name}', '''{text}''', device_str='cuda')", "", ""]
        lines += ["def call(args):"]
        for number, name in enumerate(kernels, 2):
            lines += [
                "    # Topologically Sorted Source Nodes: [other], Original ATen: [aten.addmm]",
                "    # [Provenance debug handles] extern_kernels.addmm:1",
                "    extern_kernels.addmm(arg0_1, buf0, out=buf1)",
                f"    # Topologically Sorted Source Nodes: [{nodes}, used_{name}], Original ATen: [{aten}]",
                f"    # [Provenance debug handles] {name}:{number}",
                "    raw_stream0 = get_raw_stream(0)",
                f"    {name}.run(buf1, buf2, 64, stream=raw_stream0)",
            ]
        return "\n".join([*lines, "    return (buf2, )", ""])

    return make


@pytest.fixture
def tracking():
    """What provenance tracking notes of kernels: stacks and nodes as JSON, for a line of `model.py` each."""

    def make(**line_of_kernel):
        stacks = {
            f"{name}:{number}": [
                f'  File "/home/me/model.py", line {line}, in forward\n    h = F.gelu(h)\n        ^^^^^^^^^\n'
            ]
            for number, (name, line) in enumerate(line_of_kernel.items(), 2)
        }
        nodes = {"cppCodeToPost": {use: ["mul", "erf"] for use in stacks}, "version": 2.0}
        return json.dumps(stacks), json.dumps(nodes)

    return make
