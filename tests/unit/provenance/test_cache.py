from pathlib import Path

import pytest

from opscope.provenance.cache import cache_folder, write_atomically


@pytest.mark.parametrize(
    ("configured", "folder"),
    [("{home}", "opscope"), ("", ".cache/opscope"), ("relative/folder", ".cache/opscope")],
)
def test_the_folder_follows_the_environment_or_is_in_the_home(monkeypatch, tmp_path, configured, folder):
    monkeypatch.setenv("XDG_CACHE_HOME", configured.format(home=tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / folder


def test_a_user_without_a_home_has_a_temporary_folder(monkeypatch):
    def no_home():
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert cache_folder().name == "opscope"


def test_a_failed_write_leaves_nothing_behind_and_a_file_is_replaced_as_a_whole(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="file"):
        write_atomically(tmp_path / "file", b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    file = tmp_path / "folder" / "file"
    write_atomically(file, b"first")
    write_atomically(file, b"second")
    assert file.read_bytes() == b"second"
    assert list(file.parent.iterdir()) == [file]
