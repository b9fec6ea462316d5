"""No English prose is left in a Chinese report of what `test_outputs` has no recording for."""

import pytest

from opscope.cli import console, main
from opscope.report.languages import Language, translated

from .english import english
from .test_outputs import HERE, REPOSITORY


@pytest.mark.exhaustive(few=False)
def test_other_reports_are_chinese(monkeypatch, capsys):
    said = []

    def kept(document, _):
        said.append(translated(document, Language.ZH))
        return document

    monkeypatch.setattr(console, "translated", kept)
    bert = str(REPOSITORY / "src/opscope/data/bert_h200.json.gz")
    other = str(HERE / "traces/misc_ops_fp32.json.gz")
    for command in (["explain", "matrix", "--trace", bert], ["compare", bert, other]):
        assert main(command) == 0
    capsys.readouterr()
    assert len(said) == 3  # the longer one ends with its conclusion
    assert english(said) == []
