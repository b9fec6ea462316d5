"""What a sidecar says becomes tables; a flawed one becomes a finding."""

import json

import msgspec
import pytest

from fakes import TraceBuilder, sidecar
from opscope.model import origin
from opscope.model.sidecar import RecordedRegion, Sidecar, sidecar_path, write_sidecar

GEMM = origin.RecordedKernel(
    "gemm",
    "libown.so",
    "ab12",
    (origin.RecordedUnit("a.cu", "12345678", "src/a.cu"), origin.RecordedUnit("b.cu")),
)
SOURCE = origin.RecordedSource(
    "triton_k", origin.SourceKind.INDUCTOR, origin.SourceEvidence.LAUNCH, "/cache/ck.py", 18, 30, hash="ck",
    copy="t.kernels/ck.py", graph="0_forward", graph_key="fosf", heuristic="pointwise",
    original_aten=("aten::gelu",), source_nodes=("h", "h_1"), modules=("layers.0",),
    stacks=((origin.SourceFrame("/home/me/model.py", 8, "forward", "h = F.gelu(h)"),),),
    meta={"num_load": 2},
)  # fmt: skip


@pytest.fixture
def recorded(make_trace):
    """Writes a trace of two kernels with a sidecar."""

    def make(name="t.json", **fields):
        trace = (
            TraceBuilder().operator("triton_k", 1, 5).launch(2).kernel("gemm", 9, 3).kernel("triton_k", 20, 1)
        )
        path = make_trace(trace, name)
        write_sidecar(sidecar_path(path), sidecar(**fields))
        return path

    return make


def test_a_sidecar_is_kept_and_its_facts_are_the_traces(load, recorded):
    session = load(recorded(rank=2, world_size=4))
    # torch notes no rank where the process group is gone when it writes.
    columns = "rank, world_size, torch_version, torch_git_version, cuda_version, driver_version"
    assert session.query(f"SELECT {columns} FROM traces") == [
        (2, 4, "2.11.0+cu130", "70d99e9", "13.0", "13.1")
    ]
    kept = msgspec.json.decode(session.metadata("sidecar:0") or "", type=Sidecar)
    assert kept == sidecar(rank=2, world_size=4)
    assert not [one for one in session.findings() if "sidecar" in one.code]
    assert window_findings(session) == []


def test_origins_have_a_row_per_unit(load, recorded):
    others = (origin.RecordedKernel("triton_k"), origin.RecordedKernel("not in the trace", "libx.so"))
    query = """SELECT n.name, o.* EXCLUDE (name_id)
        FROM kernel_origins o JOIN kernel_names n USING (name_id) ORDER BY ALL"""
    assert load(recorded(kernels=(GEMM, *others))).query(query) == [
        ("gemm", "libown.so", "ab12", "a.cu", "12345678", "src/a.cu"),
        ("gemm", "libown.so", "ab12", "b.cu", None, None),
    ]
    bare = origin.RecordedKernel("gemm", "libcublas.so.13")
    assert load(recorded(kernels=(bare,))).query(query) == [
        ("gemm", "libcublas.so.13", None, None, None, None)
    ]


def test_sources_are_kept_and_saved(load, recorded, tmp_path):
    session = load(recorded(kernel_sources=(SOURCE,)))
    opened = load(session.save(tmp_path / "s.opscope"))
    (row,) = opened.records(
        "SELECT n.name, s.* EXCLUDE (name_id) FROM kernel_sources s JOIN kernel_names n USING (name_id)"
    )
    assert json.loads(row.pop("stacks")) == [
        [{"file": "/home/me/model.py", "line": 8, "function": "forward", "code": "h = F.gelu(h)"}]
    ]
    assert json.loads(row.pop("meta")) == {"num_load": 2}
    assert row == {
        "name": "triton_k", "kind": "inductor", "evidence": "launch", "file": "/cache/ck.py", "line": 18,
        "end_line": 30, "hash": "ck", "copy": "t.kernels/ck.py", "user_file": None, "user_line": None,
        "heuristic": "pointwise", "graph": "0_forward", "graph_key": "fosf", "original_aten": ["aten::gelu"],
        "source_nodes": ["h", "h_1"], "modules": ["layers.0"], "post_grad_nodes": [],
    }  # fmt: skip


def test_registrations_are_kept(load, recorded):
    scale = origin.OperatorRegistration(
        "mylib::scale", origin.RegistrationKind.CUSTOM_OP, definition="/me/ops.py:3", kernels={"CUDA": None},
        python_file="/me/ops.py", python_line=3, end_line=6,
    )  # fmt: skip
    session = load([recorded(f"r{rank}.json", registrations=(scale,)) for rank in range(2)])
    (row,) = session.records("SELECT * FROM operator_registrations")
    assert (json.loads(row.pop("kernels")), json.loads(row.pop("overrides"))) == ({"CUDA": None}, {})
    assert row == {
        "name": "mylib::scale", "kind": "custom_op", "schema": None, "definition": "/me/ops.py:3",
        "python_file": "/me/ops.py", "python_line": 3, "end_line": 6,
    }  # fmt: skip


def test_ranks_agree_once_and_differ_apart(load, recorded):
    other = origin.RecordedKernel("gemm", "libown.so", "other build")
    paths = [recorded("r0.json", kernels=(GEMM,)), recorded("r1.json", kernels=(GEMM,))]
    paths += [recorded("r2.json", kernels=(other,))]
    session = load(paths)
    assert session.query("SELECT build_id, count(*) FROM kernel_origins GROUP BY 1 ORDER BY 1") == [
        ("ab12", 2),
        ("other build", 1),
    ]
    assert [session.metadata(f"sidecar:{rank}") is None for rank in range(4)] == [False, False, False, True]


@pytest.mark.parametrize(
    "damage",
    [
        {"kernels": [{"library": "no name"}]}, {"kernel_sources": [5]}, {"schema_version": 2}, {"gaps": None},
        "not JSON", "{}", '{"schema_version": 999}',
    ],
)  # fmt: skip
def test_a_broken_or_newer_one_is_a_finding(load, recorded, damage):
    path = recorded(kernels=(GEMM,))
    fields = json.loads(sidecar_path(path).read_text())
    sidecar_path(path).write_text(damage if isinstance(damage, str) else json.dumps({**fields, **damage}))
    session = load(path)
    assert session.metadata("sidecar:0") is None
    assert "trace.sidecar_unreadable" in {finding.code for finding in session.findings()}
    assert session.query("SELECT torch_version FROM traces") == [(None,)]
    assert session.scalar("SELECT count(*) FROM kernel_origins") == 0


def window_findings(session):
    return [finding for finding in session.findings() if finding.code.startswith("capture.")]


def test_half_recorded_regions_are_a_warning_per_kind(load, recorded):
    regions = (
        RecordedRegion(1_000, 3_000, ("cpu",), 1),
        RecordedRegion(4_000, 5_000, ("cuda",), 1),
        RecordedRegion(6_000, 9_000, ("cpu",), 2),
        RecordedRegion(9_500, 9_600, ("cpu", "cuda"), 2),
    )
    session = load(recorded(regions=regions))
    operators, device, nothing = window_findings(session)
    assert {one.code for one in (operators, device, nothing)} == {"capture.partial_collection"}
    assert [str(one.severity) for one in (operators, device, nothing)] == ["warning", "warning", "info"]
    assert operators.message.startswith(
        "Operators were not recorded in 2 regions (5.00 µs in all, in 2 steps)"
    )
    assert "unattributed" in operators.message
    assert operators.evidence == {"off": ["cpu"], "region_count": 2, "duration_ns": 5_000, "steps": [1, 2]}
    assert "no device time" in device.message
    assert nothing.message.startswith("Nothing was recorded in 1 region (100 ns in all, in 1 step)")
    assert nothing.suggestion is None
    assert all(not check.violations for check in session.check())


@pytest.mark.parametrize(
    ("ended_by", "shown"), [("ValueError", "ended by ValueError after"), (None, "ended after")]
)
def test_a_window_left_early_is_told(load, recorded, ended_by, shown):
    (finding,) = window_findings(load(recorded(partial=True, steps=1, ended_by=ended_by)))
    assert finding.code == "capture.partial_window"
    assert shown in finding.message
    assert finding.evidence == {"step_count": 1, "planned_step_count": 3}


def test_what_follows_the_last_whole_step_is_in_none(load, make_trace):
    """It would count as a step, and halve what one takes."""
    trace = TraceBuilder()
    for number in (1, 2):
        start = 100.0 * number
        trace.step(number, start, 90 if number == 1 else 20)
        trace.operator("aten::mm", start + 1, 8).launch(start + 2).kernel("gemm", start + 10, 5)
    path = make_trace(trace, "t.json")
    write_sidecar(sidecar_path(path), sidecar(partial=True, steps=1))
    session = load(path)
    assert session.query("SELECT step, duration_ns FROM steps") == [(1, 90_000)]
    for table in ("operators", "runtime_calls", "device_activities"):
        assert session.query(f"SELECT step FROM {table} ORDER BY start_ns") == [(1,), (None,)]
    assert all(not check.violations for check in session.check())
