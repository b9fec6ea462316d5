from pathlib import Path

from case_tables import cases
from opscope.provenance.packaged import cache_folder


@cases("configured", "folder")
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
