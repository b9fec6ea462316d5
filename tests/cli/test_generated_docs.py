from .conftest import script


def test_a_stale_page_fails_the_check_and_is_rewritten(tmp_path, monkeypatch, capsys):
    docs = script("generate_docs")
    assert docs.main(["--check"]) == 0
    page = tmp_path / "reference" / "tables.md"
    monkeypatch.setattr(docs, "TABLES_PAGE", page)
    assert docs.main(["--check"]) == 1
    assert "is stale" in capsys.readouterr().err
    assert [docs.main([]), docs.main(["--check"])] == [0, 0]
    assert "## device_activities" in page.read_text("utf-8")
