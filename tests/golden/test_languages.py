"""No English prose is left in a Chinese report: of each verb; `make exhaustive` asks every recording."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from opscope.cli import console, main
from opscope.report.document import Document
from opscope.report.languages import Language, translated

from .english import english
from .test_outputs import HERE, REPOSITORY, SHARED, Source, sources

FEW = (
    ("analyze", "{bert}", "--top", "all", "--output", "{folder}/report.md"),
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


@pytest.mark.exhaustive(few=False)
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
