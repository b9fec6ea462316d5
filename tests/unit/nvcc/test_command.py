"""Commands of nvcc."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.errors import DependencyError, InputError
from opscope.hardware.architectures import Target, parse_target
from opscope.nvcc.compile import Request, choose_targets, code_options, command_text, ptx_target, read_nvcc


def test_a_command_is_written_as_in_a_shell():
    request = Request(Path("my add.cu"), Path("made"), True, (Target(9, 0),), options=("-O3",))
    command = request.command("/usr/local/cuda/bin/nvcc", output=Path("add"))
    assert command_text(command) == "nvcc -gencode arch=compute_90,code=sm_90 -O3 -o add 'my add.cu'"
    assert request.command("nvcc", "--keep")[-4:] == ["--keep", "-o", "made", "my add.cu"]


# What nvcc 13.0 knows.
KNOWN = tuple(
    Target(int(number[:-1]), int(number[-1]), suffix)
    for number, suffixes in {
        "75": "", "80": "", "86": "", "87": "", "88": "", "89": "", "90": "a", "100": "af", "103": "af",
        "110": "af", "120": "af", "121": "af",
    }.items()
    for suffix in ("", *suffixes)
)  # fmt: skip


def choose(*words, native=("9.0",)):
    return [one.name for one in choose_targets(words, KNOWN, native=lambda: native)]


def test_words_become_distinct_targets_in_order_or_all_that_nvcc_has():
    assert choose("sm_90", "sm_80", "90", "sm_90a") == ["sm_80", "sm_90", "sm_90a"]
    assert choose("native", native=("9.0", "9.0", "8.0")) == ["sm_80", "sm_90"]
    assert choose("all") == [one.name for one in KNOWN if one.is_general]
    assert choose("all-major") == ["sm_75", "sm_80", "sm_90", "sm_100", "sm_110", "sm_120"]


def test_an_unknown_target_lists_the_known():
    with pytest.raises(InputError, match=r"build for sm_70\. It knows sm_75, .*sm_121f"):
        choose("sm_70")
    with pytest.raises(InputError, match=r"'sm_9' is not a target of nvcc\. It knows sm_75"):
        choose("sm_9")
    with pytest.raises(InputError, match="--arch sm_90,ptx"):
        choose("compute_90")
    assert not any(map(parse_target, ["compute_90", "sm_9", "sm_90x", "h200", "", "sm_", "native"]))


def test_ptx_is_of_the_first_target_of_the_newest_generation():
    assert ptx_target([Target(9, 0), Target(12, 0), Target(12, 1)]).ptx_name == "compute_120"
    assert ptx_target([Target(8, 0), Target(9, 0, "a")]).ptx_name == "compute_80"
    with pytest.raises(InputError, match="compute_90a is for no later GPU"):
        ptx_target([Target(9, 0, "a")])


def test_options_of_one_target_with_ptx_are_nvccs_short_form():
    assert code_options([Target(9, 0)], Target(9, 0)) == ["-arch=sm_90"]
    assert code_options([Target(9, 0)], None) == ["-gencode=arch=compute_90,code=sm_90"]
    assert code_options([Target(8, 0), Target(9, 0, "a")], Target(8, 0)) == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_80,code=compute_80",
    ]


@given(st.lists(st.sampled_from(KNOWN), min_size=1))
def test_chosen_targets_are_those_named_once_each_and_sorted(targets):
    chosen = choose(*(one.name for one in targets))
    assert chosen == [one.name for one in sorted(set(targets))]
    for one in targets:
        assert parse_target(one.name) == one == parse_target(one.number)


OUTPUTS = Path(__file__).parent / "outputs"
VERSION, HELP = ((OUTPUTS / name).read_text(encoding="utf-8") for name in ("version.txt", "help.txt"))


def nvcc(folder, *, release="12.3", version="12.3.52", listing=None):
    """A program that answers as nvcc does; without a listing it does not know the option."""
    answers = "\n".join(f"echo {word}" for word in (listing or "").split()) or "exit 1"
    script = folder / "nvcc"
    script.write_text(
        "#!/bin/sh\n"
        f'case "$1" in\n'
        f"--version) cat <<'EOF'\n{VERSION.format(release=release, version=version)}EOF\n;;\n"
        f"--help) cat <<'EOF'\n{HELP}EOF\n;;\n"
        f"--list-gpu-code) {answers}\n;;\nesac\n"
    )
    script.chmod(0o755)
    return str(script)


def test_release_and_targets_by_the_listing_or_the_help(tmp_path):
    found = read_nvcc(nvcc(tmp_path, listing="sm_50 sm_80 sm_90"))
    assert (found.release, found.version) == ("12.3", "12.3.52")
    assert [one.name for one in found.targets] == ["sm_50", "sm_80", "sm_90", "sm_90a"]
    assert tuple(one for one in found.targets if one.is_general) == (Target(5, 0), Target(8, 0), Target(9, 0))
    assert [one.name for one in read_nvcc(nvcc(tmp_path)).targets][-1] == "sm_90a"


def test_what_does_not_answer_is_no_nvcc(tmp_path):
    script = tmp_path / "nvcc"
    script.write_text("#!/bin/sh\necho hello\n")
    script.chmod(0o755)
    with pytest.raises(DependencyError, match="does not answer as nvcc does"):
        read_nvcc(str(script))
    with pytest.raises(DependencyError, match="cannot be started"):
        read_nvcc(str(tmp_path / "nothing"))
