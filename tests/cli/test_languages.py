import json
import re

import pytest
from rich.cells import cell_len

from case_tables import cases

from .conftest import script


@cases("options", "environment", "is_chinese")
def test_the_language_is_asked_for(
    opscope, recording, tmp_path, monkeypatch, *, options, environment, is_chinese
):
    folder = tmp_path / "report"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    outcome = opscope(
        "analyze", recording, "--full", "--output", folder / "report.md", "--force", *options
    ).fine()
    for said in (outcome.out, (folder / "report.md").read_text(encoding="utf-8")):
        assert ("概览" in said) is is_chinese
        assert ("Overview" in said) is not is_chinese
    assert opscope("analyze", recording, "--json", *options).json["summary"]["steps"] == 1


def test_wide_characters_stay_in_their_columns(opscope, recording, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = opscope("analyze", recording, "--lang", "zh").out.splitlines()
    assert max(cell_len(line) for line in lines if not re.match("  [a-z#@]", line)) <= 80  # but for code
    start = next(index for index, line in enumerate(lines) if line.lstrip().startswith("#  算子"))
    widths = {cell_len(line.rstrip()) for line in lines[start + 2 : start + 4]}
    assert len(widths) == 1


@pytest.mark.exhaustive(few=False)
def test_every_message_of_the_source_is_translated():
    """`scripts/messages.py --update` adds what is new; its words are written by hand."""
    messages = script("messages")
    text = messages.path_of("zh").read_text(encoding="utf-8")
    catalog = messages.updated(json.loads(text), messages.messages())
    assert messages.written(catalog) == text, "new, or no longer said: scripts/messages.py --update"
    for message, said in (entry for of_file in catalog.values() for entry in of_file.items()):
        numbers = [str(number) for number in range(message.count("{}"))]
        shown = said.format(*(f"<{number}>" for number in numbers))
        assert shown
        assert all(f"<{number}>" in shown for number in numbers)
