from __future__ import annotations

from opscope.benchmarking.implementation_code import ImplementationCode
from opscope.kernels.code import CodeKind, CodeText
from opscope.report.benchmark import code_sections
from opscope.report.document import Document
from opscope.report.json_encoding import encode
from opscope.report.markdown import render_markdown

CODES = (
    ImplementationCode("triton", CodeKind.PTX, (CodeText("gelu (Triton)", "ptx", ".version 8.7\n"),)),
    ImplementationCode("triton", CodeKind.TRITON, (CodeText("gelu: source", "python", "def gelu(): ..."),)),
    ImplementationCode("torch", CodeKind.PTX, reason="those of PyTorch are not searched"),
)


def test_code_stands_by_kind_and_implementation() -> None:
    text = render_markdown(Document("d", sections=code_sections(CODES)))
    ptx, triton = text.index("## PTX"), text.index("## Triton and torch.compile")
    assert ptx < text.index("```ptx\n.version 8.7\n```") < triton
    assert ptx < text.index("No code: those of PyTorch are not searched") < triton
    assert triton < text.index("```python\ndef gelu(): ...\n```")


def test_json_holds_the_texts_or_the_reason() -> None:
    first, _, last = encode(CODES)
    assert first == {
        "implementation": "triton",
        "kind": "ptx",
        "texts": [{"title": "gelu (Triton)", "language": "ptx", "text": ".version 8.7\n"}],
        "reason": None,
    }
    assert (last["texts"], last["reason"]) == ([], "those of PyTorch are not searched")


def test_nothing_asked_for_is_no_section() -> None:
    assert code_sections(()) == ()
