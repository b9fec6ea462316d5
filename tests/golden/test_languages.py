"""No English prose is left in a Chinese report: of each verb; `make exhaustive` asks every recording."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from opscope.cli import console, main
from opscope.report.document import (
    BarList,
    Block,
    BulletList,
    Document,
    FactList,
    FindingList,
    Paragraph,
    Section,
    Table,
    Text,
    inlines,
)
from opscope.report.languages import Language, translated

from .test_outputs import HERE, REPOSITORY, SHARED, Source, sources

# Two Latin words in a row. A word with a mark in it (`aten::mm`, `torch.compile`) is a name.
_WORD = r"[a-z]+(?:['-][a-z]+)*"
_PROSE = re.compile(rf"(?<![\w.:/`'<(=-])[A-Za-z]?{_WORD}(?: {_WORD})+(?![\w:/(.<>]*[\w(>])")
_NAMES = re.compile(
    # Terms that Chinese documents of CUDA and PyTorch keep.
    r"anonymous namespace|warp shuffle|epilogue \w+|online softmax|decoupled look-back|external id"
    r"|correlation id|world size|CUDA graph|<[^<>]*>"
    # The operator that a replay of unknown operators belongs to.
    r"|graph \d+ of engine step"
    # Names of NVIDIA's documents and of its tools' reports, and what these tools wrote themselves.
    r"|.*(?:Programming Guide|Release Notes|datasheet|whitepaper|specifications|Tuning Guide).*"
    r"|nsys warned while it recorded: .*|.*NVIDIA's rule \w+ applies.*|CUDA (?:API|GPU) .*Summary.*"
)
FEW = (
    ("analyze", "{bert}", "--all", "--output-dir", "{folder}/report"),
    ("explain", "aten::addmm", "--trace", "{bert}"),
    ("explain", "aten::native_layer_norm", "--torch-version", "2.11.0"),
    ("explain", "matrix", "--trace", "{bert}"),
    ("bench", "{gelu}"),
    ("compare", "{gelu}", "{gelu}"),
    ("compare", "{bert}", "{misc}"),
    ("analyze", "{export}"),
    ("ncu", "{counters}"),
    ("devices",),
    ("devices", "H200"),
    ("index",),
)  # fmt: skip


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Document]:
    """The Documents that verbs show from now on, in Chinese."""
    shown: list[Document] = []

    def kept(document: Document, _: Language) -> Document:
        shown.append(translated(document, Language.ZH))
        return document

    monkeypatch.setattr(console, "translated", kept)
    return shown


def test_verbs_speak_chinese(
    said: list[Document], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counters = tmp_path / "ops.ncu-rep"
    places = {
        "bert": REPOSITORY / "src/opscope/data/bert_h200.json.gz",
        "misc": HERE / "traces/misc_ops_fp32.json.gz",
        "gelu": REPOSITORY / "benchmarks/results/h200_gelu.json",
        "export": SHARED / "traces/nsys/mock.sqlite",
        "counters": counters,
        "folder": tmp_path,
    }
    packed = SHARED / "ncu/ops.ncu-rep.gz"
    if packed.exists():
        counters.write_bytes(gzip.decompress(packed.read_bytes()))
    for command in FEW:
        words = [word.format(**places) for word in command]
        if all(Path(word).exists() for word in words if word.startswith("/") and "report" not in word):
            assert main(words) == 0
    capsys.readouterr()
    assert len(said) > 8
    assert english(said) == []


@pytest.mark.exhaustive(few=False)
@pytest.mark.parametrize("source", sources(), ids=lambda source: source.name)
def test_reports_of_every_recording_are_chinese(
    source: Source, said: list[Document], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    for command in source.commands(str(source.path), tmp_path / "out"):
        if "stats" not in command:  # what nsys says, as it says it
            main(command)
    capsys.readouterr()
    assert english(said) == []


def english(documents: list[Document]) -> list[str]:
    """Their texts that hold English prose."""
    texts = {text for document in documents for text in _texts(document)}
    return sorted(text for text in texts if _PROSE.search(_NAMES.sub("", text)))


def _texts(part: Document | Section) -> Iterator[str]:
    yield part.title
    for block in part.blocks:
        yield from map(_words, _of_block(block))
    for section in part.sections:
        yield from _texts(section)


def _of_block(block: Block) -> Iterator[Text]:
    if isinstance(block, BarList):
        yield from _of_block(block.table)
    elif isinstance(block, Table):
        yield block.caption or ""
        yield from (column.title for column in block.columns)
        yield from (cell for row in block.rows for cell in row)
    elif isinstance(block, FactList):
        yield from (text for fact in block.facts for text in fact)
    elif isinstance(block, BulletList):
        yield from block.items
    elif isinstance(block, FindingList):
        yield from (finding.message for finding in block.findings)
    elif isinstance(block, Paragraph):
        yield block.text


def _words(text: Text) -> str:
    """A text without its code."""
    return "".join(part if isinstance(part, str) else "_" for part in inlines(text))
