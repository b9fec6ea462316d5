import pytest

from opscope.errors import InputError
from opscope.provenance.sources import INDEX_FORMAT, source_index


@pytest.mark.parametrize("version", [None, "", "main", "../2.6.0", "2.6"])
def test_what_is_no_version_has_no_index(version):
    assert source_index(version) is None


def test_a_damaged_or_absent_file_says_so(tmp_path):
    path = tmp_path / "sources.msgpack.zst"
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a source index") as raised:
        INDEX_FORMAT.read(path)
    assert raised.value.source == str(path)
    with pytest.raises(InputError, match="cannot be read"):
        INDEX_FORMAT.read(tmp_path / "none")
