from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from case_tables import cases
from opscope.model.origin import Grade, SourceLocation
from opscope.provenance import sources, torch_releases

COMMIT = "2236df1770800ffea5697b11b0bb0d910b2e59e1"
BLOB = f"https://github.com/pytorch/pytorch/blob/{COMMIT}"
SOFTMAX = "aten/src/ATen/native/cuda/SoftMax.cu"


@cases("line", "end_line", "anchor")
def test_the_address_of_lines(line, end_line, anchor):
    assert sources.permalink(COMMIT, SOFTMAX, line, end_line) == f"{BLOB}/{SOFTMAX}{anchor}"


@cases("header", "file")
def test_headers_lead_to_the_repository_and_back(header, file):
    assert sources.repository_path(header) == file
    assert sources.include_path(file) == header
    assert sources.permalink(COMMIT, header, 3) == sources.permalink(COMMIT, file, 3) == f"{BLOB}/{file}#L3"


@cases("header")
def test_generated_and_foreign_headers_are_not_in_the_repository(header):
    assert sources.repository_path(header) is None
    assert sources.permalink(COMMIT, header, 3) is None


@cases("file")
def test_no_permalink_for_what_the_repository_does_not_hold(file):
    assert sources.permalink(COMMIT, file, 1) is None


def test_permalinks_escape_odd_characters_and_reach_other_files():
    assert sources.permalink(COMMIT, "aten/a b#c.cu", 1) == f"{BLOB}/aten/a%20b%23c.cu#L1"
    assert sources.include_path("tools/x.py") is None
    derivatives = "tools/autograd/derivatives.yaml"
    assert sources.permalink(COMMIT, derivatives, 5) == f"{BLOB}/{derivatives}#L5"


FILE = "aten/src/ATen/native/cuda/A.cuh"


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "checkout" / FILE
    path.parent.mkdir(parents=True)
    path.write_text("one\ntwo\r\nthree\x0cx\nfour\n", encoding="utf-8")
    (tmp_path / "secret.cu").write_text("secret", encoding="utf-8")
    return tmp_path / "checkout"


@cases("line", "end_line", "lines")
def test_lines_of_a_file(root, line, end_line, lines):
    assert sources.read_lines(FILE, line, end_line, [root]) == lines


@cases("file")
def test_nothing_outside_the_roots(root, file):
    assert sources.read_lines(file, 1, None, [root]) is None


def test_a_link_that_leads_out_is_not_followed(root, tmp_path):
    (root / "link.cu").symlink_to(tmp_path / "secret.cu")
    (root / "aten" / "loop.cu").symlink_to(root / "aten" / "loop.cu")
    assert sources.read_lines("link.cu", 1, None, [root]) is None
    assert sources.read_lines("aten/loop.cu", 1, None, [root]) is None


def test_no_line_is_read_without_a_root_or_beyond_a_screenful_of_screens(tmp_path, root):
    assert sources.read_lines(FILE, 1, None, []) is None
    assert sources.read_lines(FILE, 1, None, [tmp_path / "none"]) is None
    (root / "long.cu").write_text("x\n" * 5000, encoding="utf-8")
    assert len(sources.read_lines("long.cu", 1, 5000, [root])) == 2000


def test_lines_from_a_checkout_or_the_installation(monkeypatch, tmp_path):
    spec, checkout = ModuleSpec("torch", None, is_package=True), tmp_path / "checkout"
    spec.submodule_search_locations = [str(tmp_path / "torch")]
    monkeypatch.setattr(torch_releases, "find_spec", lambda name: spec)
    header = tmp_path / "torch/include/ATen/native/cuda/A.cuh"
    for file, place in ((header, "installation"), (checkout / FILE, "checkout")):
        file.parent.mkdir(parents=True)
        file.write_text(f"// of the {place}\n__global__ void k() {{}}\n", encoding="utf-8")
    (tmp_path / "own.py").write_text("def kernel(): ...\n", encoding="utf-8")
    location = SourceLocation(FILE, Grade.EXACT, 1, 1, Grade.EXACT)
    assert sources.source_reader()(location) == ["// of the installation"]
    assert sources.source_reader(checkout)(location) == ["// of the checkout"]
    own = SourceLocation(str(tmp_path / "own.py"), Grade.EXACT, 1, None, Grade.EXACT)
    for folders in (own_folder := [tmp_path], [tmp_path.parent]):
        assert sources.source_reader(folders=folders)(own) == ["def kernel(): ..."]
    assert sources.source_reader(copies=own_folder)(own) == ["def kernel(): ..."]
    assert sources.source_reader()(SourceLocation(FILE, Grade.EXACT)) is None


def test_a_recording_has_no_file_read_outside_of_its_folder(tmp_path):
    folder, secret = tmp_path / "recording", tmp_path / "secret.py"
    folder.mkdir()
    secret.write_text("password = 'x'\n", encoding="utf-8")
    (folder / "link.py").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path)
    read = sources.source_reader(folders=[folder])
    named = [secret, folder / "link.py", folder / "up" / "secret.py", folder / ".." / "secret.py"]
    for file in (*named, Path("/etc/passwd"), Path("/dev/zero")):
        assert read(SourceLocation(str(file), Grade.EXACT, 1, None, Grade.EXACT)) is None, file
