import pytest

from .conftest import saved
from .test_commands import steps


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    return saved(steps(100).write(tmp_path_factory.mktemp("fast") / "fast.json"))


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", '{"schema_version": 1}', "no JSON"])
def test_other_files_are_refused(opscope, tmp_path, fast, text):
    other = tmp_path / "other.json"
    other.write_text(text)
    opscope("compare", fast, other).fails(str(other))
