import json
from pathlib import Path

import msgspec
import pytest

from case_tables import cases
from fakes import sidecar as made_sidecar
from opscope.errors import CaptureError, InputError
from opscope.model.finding import RECORDER_KEY, recorded_findings
from opscope.model.origin import FrameName, is_program_file, parse_frame
from opscope.model.sidecar import (
    Environment,
    GpuInfo,
    StepKind,
    StepPlace,
    UnrecordedStep,
    read_sidecar,
    sidecar_path,
    write_sidecar,
)

GPU = GpuInfo("NVIDIA H200", "9.0", 132, 2**37)
SIDECAR = made_sidecar(
    environment=Environment("3.12.1", "Linux x86_64", "0.1.0", gpu=(GPU,)),
    workload={"workload": "bert", "batch_size": 8},
)


@cases("trace", "sidecar")
def test_one_rule_for_the_sidecars_name(trace, sidecar):
    assert sidecar_path(trace) == Path(sidecar)


def test_what_is_written_is_read_and_nothing_else_is_left(tmp_path):
    write_sidecar(tmp_path / "a.opscope.json", SIDECAR)
    assert read_sidecar(tmp_path / "a.opscope.json") == SIDECAR
    assert [file.name for file in tmp_path.iterdir()] == ["a.opscope.json"]
    assert json.loads((tmp_path / "a.opscope.json").read_text())["schema_version"] == 1


@pytest.mark.parametrize("wrong", [{"kind": "epoch"}, {"step_count": 0}, {"host_ns": -1}, {"device_ns": 1.5}])
def test_samples_of_steps_are_checked(tmp_path, wrong):
    sample = UnrecordedStep(StepKind.PERIOD, StepPlace.BEFORE, 0, 1, 2, 30, 40)
    write_sidecar(tmp_path / "a.json", msgspec.structs.replace(SIDECAR, unrecorded_steps=(sample,)))
    assert read_sidecar(tmp_path / "a.json").unrecorded_steps == (sample,)
    document = json.loads((tmp_path / "a.json").read_text())
    document["unrecorded_steps"][0] |= wrong
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="not a sidecar of opscope"):
        read_sidecar(tmp_path / "a.json")


def test_unknown_fields_of_the_same_version_are_ignored(tmp_path):
    fields = {**msgspec.to_builtins(SIDECAR), "later": 1}
    (tmp_path / "a.json").write_text(json.dumps(fields))
    assert read_sidecar(tmp_path / "a.json") == SIDECAR


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((one, "not a sidecar") for one in (b"{}", b"[1]", b'{"schema_version": 1}', b"\xff\xfe", b"")),
        (b'{"schema_version": 2, "unknown": []}', "schema version 2"),
    ],
)
def test_other_files_and_newer_versions_are_refused(tmp_path, content, message):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_sidecar(tmp_path / "a.json")


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_sidecar(tmp_path / "none.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptureError, match="the sidecar cannot be written"):
        write_sidecar(tmp_path / "file" / "a.json", SIDECAR)


@cases("value")
def test_what_is_none_is_passed_over(value):
    value = json.loads(value)
    assert list(recorded_findings({RECORDER_KEY: value}, 0)) == list(recorded_findings({}, 0)) == []


@cases("of_the_program", "of_libraries")
def test_files_of_the_program_are_told_from_those_of_libraries(of_the_program, of_libraries):
    assert [file for file in (*of_the_program, *of_libraries) if is_program_file(file)] == of_the_program


@cases("name", "parts")
def test_a_frame_of_python_is_parsed(name, parts):
    assert parse_frame(name) == (None if parts is None else FrameName(*parts))
