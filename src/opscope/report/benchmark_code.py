"""Generated code of implementations, as sections of a report and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from opscope.benchmarking.implementation_code import ImplementationCode
from opscope.kernels.code import CodeKind
from opscope.report.document import Block, Code, CodeBlock, Paragraph, Section

__all__ = ["code_json", "code_sections"]

_TITLES = {
    CodeKind.PTX: "PTX",
    CodeKind.SASS: "Machine code (SASS)",
    CodeKind.TRITON: "Triton and torch.compile",
}


def code_sections(codes: Sequence[ImplementationCode]) -> tuple[Section, ...]:
    """One section per kind of code, with one per implementation in it."""
    return tuple(
        Section(
            _TITLES[kind],
            sections=tuple(
                Section(code.implementation, tuple(_blocks(code))) for code in codes if code.kind is kind
            ),
        )
        for kind in dict.fromkeys(code.kind for code in codes)
    )


def _blocks(code: ImplementationCode) -> Iterator[Block]:
    if code.reason is not None:
        yield Paragraph(f"No code: {code.reason}")
    for text in code.texts:
        yield Paragraph(Code(text.title, is_whole=True))
        yield CodeBlock(text.text, text.language)


def code_json(codes: Sequence[ImplementationCode]) -> list[dict[str, Any]]:
    """Each implementation's texts of each kind, or the reason there are none."""
    return [
        {
            "implementation": code.implementation,
            "kind": str(code.kind),
            "texts": [text._asdict() for text in code.texts],
            "reason": code.reason,
        }
        for code in codes
    ]
