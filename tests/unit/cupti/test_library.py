"""Finding CUPTI in the layouts it is installed in, and the compiler; building, once."""

import os
import platform
from pathlib import Path

import pytest

from case_tables import cases
from opscope.cupti import library as module
from opscope.cupti.library import (
    INJECTION_VARIABLE,
    Cupti,
    build_library,
    check_program,
    find_compiler,
    find_cupti,
    installed_cupti,
    trace_environment,
)
from opscope.errors import CaptureError, DependencyError, InputError


@pytest.fixture(autouse=True)
def _no_system(monkeypatch):
    """Of this machine's own installations none is found."""
    monkeypatch.setattr(module, "_SYSTEM_ROOTS", ("/nowhere/a", "/nowhere/b", "/nowhere/c"))
    monkeypatch.setattr(module, "_USUAL_TOOLKITS", "/nowhere")


def headers(folder, *facts):
    """Files by name; a number is the version that one of them states."""
    for fact in facts:
        if isinstance(fact, int):
            (folder / "cupti_version.h").write_text(f"/* v1 */\n#define CUPTI_API_VERSION {fact}\n")
        else:
            (folder / fact).touch()


def installed(folder, version=130_001, name="libcupti.so.13"):
    """A whole installation, as a toolkit."""
    for one in ("include", "lib64"):
        (folder / one).mkdir(parents=True, exist_ok=True)
    headers(folder / "include", "cupti_activity.h", "cuda.h", version)
    (folder / "lib64" / name).touch()
    return folder


@cases("place", "includes", "library", "known")
def test_it_is_found_where_installers_put_it(tmp_path, place, includes, library, known):
    def put(name):
        folder = tmp_path / name.replace("MACHINE", platform.machine())
        folder.mkdir(parents=True)
        return folder

    folders = {put(name): files for name, files in includes.items()}
    for folder, files in folders.items():
        headers(folder, *files)
    libraries, *names = put(library[0]), *library[1:]
    for name in names:
        (libraries / name).touch()
    (found,) = installed_cupti(**{place: [tmp_path]})
    assert (found.includes, found.library) == (tuple(folders), libraries / names[0])
    assert [found.api_version, found.cuda_major] == known


@pytest.mark.parametrize("missing", ["cuda.h", "cupti_version.h", "cupti_activity.h", "library"])
def test_an_incomplete_one_or_one_too_old_is_none(tmp_path, missing):
    installed(tmp_path / "old", 17, "libcupti.so.11.7")
    assert list(installed_cupti(toolkits=[tmp_path / "old"])) == []
    installed(tmp_path)
    path = tmp_path / "lib64" / "libcupti.so.13" if missing == "library" else tmp_path / "include" / missing
    path.unlink()
    assert list(installed_cupti(toolkits=[tmp_path])) == []


def test_the_same_library_is_found_once(tmp_path):
    (tmp_path / "link").symlink_to(installed(tmp_path / "real"))
    assert len(list(installed_cupti(toolkits=[tmp_path / "link", tmp_path / "real"]))) == 1


@pytest.fixture
def both(tmp_path):
    """CUPTI of CUDA 13 before one of CUDA 12."""
    return [installed(tmp_path / "new"), installed(tmp_path / "old", 26, "libcupti.so.12")]


@pytest.mark.parametrize(("driver", "major"), [(13_000, 13), (12_040, 12), (None, 13)])
def test_the_driver_decides(both, driver, major):
    assert find_cupti(both, [], driver).cuda_major == major


def test_a_driver_too_old_for_all_and_none_at_all(both, tmp_path):
    with pytest.raises(
        DependencyError, match=r"newer CUDA than the driver supports.*pip install nvidia-cuda-cupti"
    ):
        find_cupti(both, [], 11_080)
    with pytest.raises(DependencyError, match=r"not found.*pip install nvidia-cuda-cupti"):
        find_cupti([tmp_path], [tmp_path / "none"], None)


def script(path, text, mode=0o755):
    path.write_text(text)
    path.chmod(mode)
    return path


def compiler(folder, body):
    """A stand-in for a C compiler, which notes each call."""
    return (str(script(folder / "cc", f'#!/bin/sh\necho "$@" >> {folder / "calls"}\n{body}\n')),)


WRITES_OUTPUT = 'while [ $# -gt 0 ]; do if [ "$1" = -o ]; then echo library > "$2"; fi; shift; done'


@pytest.fixture
def cupti(tmp_path):
    return Cupti((tmp_path / "include",), tmp_path / "libcupti.so.13", 130_001)


def test_it_is_built_once_for_each_version(tmp_path, cupti):
    cc = compiler(tmp_path, WRITES_OUTPUT)
    first = build_library(cupti, cc, tmp_path / "cache")
    assert first.read_text() == "library\n"
    assert build_library(cupti, cc, tmp_path / "cache") == first
    assert len((tmp_path / "calls").read_text().splitlines()) == 1
    other = build_library(Cupti(cupti.includes, cupti.library, 130_500), cc, tmp_path / "cache")
    assert other != first
    words = (tmp_path / "calls").read_text().split()
    # Its own stand-in of the runtime's header comes before CUPTI's folder.
    folders = [word for word in words if word.startswith("-I")]
    assert folders[0].endswith("native/include")
    assert folders[1] == f"-I{tmp_path / 'include'}"
    assert sorted(path.name for path in first.parent.iterdir()) == [first.name]


def test_what_the_compiler_says_is_passed_on(tmp_path, cupti):
    cc = compiler(tmp_path, "echo 'recorder.c:1: error: no good' >&2; exit 1")
    with pytest.raises(CaptureError, match=r"recorder\.c:1: error: no good"):
        build_library(cupti, cc, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_the_configured_compiler_comes_first(tmp_path):
    (cc,) = compiler(tmp_path, "")
    assert find_compiler(f"{cc} -m64", "/nowhere") == (cc, "-m64")
    assert find_compiler(None, str(tmp_path)) == (cc,)
    assert find_compiler("", f"/nowhere{os.pathsep}{tmp_path}") == (cc,)


@pytest.mark.parametrize(("configured", "words"), [(None, "compiler that builds"), ("icx", r"'icx' \(of")])
def test_no_compiler(configured, words):
    with pytest.raises(DependencyError, match=rf"{words}.*apt install gcc"):
        find_compiler(configured, "/nowhere")


def test_programs_that_are_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = script(tmp_path / "plain", "", 0o644)
    script(tmp_path / "tool", "#!/bin/sh\n")
    check_program("./tool", None)
    check_program("sh", os.environ["PATH"])
    for name, words in (
        ("./none", r"there is no program './none'"),
        (str(tmp_path), "a folder is not a program"),
        (str(plain), r"may not be executed.*chmod \+x"),
        ("tool", r"on PATH.*\./tool"),
    ):
        with pytest.raises(InputError, match=words):
            check_program(name, "/nowhere")


def environment(folder, **given):
    cupti = folder / "libcupti.so.13"
    return trace_environment(
        given, library=Path("lib.so"), cupti=cupti, folder=folder, with_unified_memory=False
    )


def test_the_environment_names_recorder_and_folder_and_no_other_tools(tmp_path):
    assert environment(tmp_path, A="b", **{INJECTION_VARIABLE: ""}) == {
        "A": "b",
        INJECTION_VARIABLE: str(Path.cwd() / "lib.so"),
        "OPSCOPE_TRACE_FOLDER": str(tmp_path),
        "OPSCOPE_TRACE_CUPTI": str(tmp_path / "libcupti.so.13"),
        "OPSCOPE_TRACE_UNIFIED": "0",
    }
    with pytest.raises(CaptureError, match=r"another tool records.*nsys\.so"):
        environment(tmp_path, **{INJECTION_VARIABLE: "/opt/nsys.so"})
