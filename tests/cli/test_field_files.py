"""Files of public repositories, and faults as people reported them: what is said of each."""

import gzip
import lzma
from pathlib import Path

import pytest

from case_tables import cases

REPOSITORY = Path(__file__).parents[2]
FIELD = REPOSITORY.parent / "shared/field"
OF_TORCH = ("torch", "Torch", "loss.detach", "DataLoader", "opscope try", "opscope run", "aten::")
NO_DEVICE = ("No device was used", "no device;", "internal error")

pytestmark = pytest.mark.skipif(not (FIELD / "files").is_dir(), reason=f"no {FIELD}")


@cases("name", "phrase", "launches", "device_ns", "operator", "of_operator")
def test_files_of_other_recorders_are_named_and_summed(
    opscope, *, name, phrase, launches, device_ns, operator, of_operator
):
    path = str(FIELD / "files" / name)
    refused = opscope("sql", path).fails(phrase, "opscope analyze shows totals", "opscope reads", lines=1)
    opscope("compare", path, path).fails(phrase)
    shown = opscope("analyze", path).fine(phrase, "totals only", operator)
    assert not any(one in refused.err + shown.out for one in NO_DEVICE)
    totals = opscope("analyze", path, "--json").json
    kernels, operators = totals["kernels"], totals["operators"]
    assert sum(one["calls"] for one in kernels) == launches
    assert sum(one["device_ns"] for one in kernels) == device_ns
    if operator:  # every launch is of one, or of none
        assert [operators[0]["name"], operators[0]["calls"]] == [operator, of_operator]
        assert sum(one["device_ns"] for one in operators) == device_ns
        assert sum(one["calls"] for one in operators) == launches
    else:
        assert operators == []


_DISPATCH = '{"start_timestamp": 5, "end_timestamp": %d, "dispatch_info": {"kernel_id": 7}}'
_ROCPROF = (
    '{"rocprofiler-sdk-tool": [{"kernel_symbols": [{"kernel_id": 7, "formatted_kernel_name": "gemm"}],'
    f'"buffer_records": {{"kernel_dispatch": [{_DISPATCH % 8}, {_DISPATCH % 9}], "memory_copy": []}}}}]}}'
)


def test_rocprofs_own_files_are_summed_and_broken_ones_are_an_error(opscope, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(_ROCPROF)
    assert opscope("analyze", str(path), "--json").json["kernels"] == [
        {"name": "gemm", "calls": 2, "device_ns": 7}
    ]
    for broken in (_ROCPROF[:-9], _ROCPROF.replace("memory_copy", "other"), '[{"frame": {}}]'):
        path.write_text(broken)
        opscope("analyze", str(path)).fails("not as its recorder writes it", lines=1)


@cases("content", "phrase")
def test_other_formats_are_named(opscope, tmp_path, content, phrase):
    path = tmp_path / "file.json.gz"
    path.write_bytes(gzip.compress(content.encode()))
    opscope("analyze", str(path)).fails(phrase, out=None)


@pytest.mark.exhaustive(few=False)
@cases("name", "there", "absent", "has_torch")
def test_what_is_said(opscope, tmp_path, *, name, there, absent, has_torch):
    path = FIELD / "files" / name
    if path.suffix == ".xz":
        path = tmp_path / path.stem
        path.write_bytes(lzma.decompress((FIELD / "files" / name).read_bytes()))
    told = opscope("analyze", str(path)).fine()
    text = " ".join(told.out.split())
    assert [one for one in there if one not in text] == []
    assert [one for one in (*absent, *(() if has_torch else OF_TORCH)) if one in text] == []
    if "schema29" in name:
        assert "schema 2.9.1" in opscope("analyze", str(path), "--section", "findings").out
