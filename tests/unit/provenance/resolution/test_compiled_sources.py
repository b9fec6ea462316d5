"""Sources of kernels that torch.compile generated: the files that launches name, and what is recorded."""

from pathlib import Path

import pytest

from fakes import TraceBuilder
from opscope.model.origin import Grade, SourceLocation
from opscope.provenance.generated_code import source_hash
from opscope.provenance.resolution.evidence import complete_sources, source_locations


@pytest.fixture
def trace():
    """A trace that launches kernels by their file, and replays others in a graph of a key."""

    def make(launched, replayed=(), key="fosf"):
        built = TraceBuilder()
        for name, file in launched.items():
            arguments = {"kernel_backend": "triton", "kernel_file": file, "kernel_hash": Path(file).stem}
            built.operator(name, 10, 5, **arguments).launch(11).kernel(name, 20, 2)
        built.event("user_annotation", f"## Call CompiledFxGraph {key} ##", 40, 9, 1, {})
        built.launch(41, name="cudaGraphLaunch")
        for name in replayed:
            built.kernel(name, 50, 3)
        return built

    return make


@pytest.fixture
def written(tmp_path):
    """Writes a generated file as inductor's cache has it."""

    def write(text, folder="cache"):
        file = tmp_path / folder / f"{source_hash(text)}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return file

    return write


def sources(session):
    return session.records(
        "SELECT n.name, s.* EXCLUDE (name_id) FROM kernel_sources s JOIN kernel_names n USING (name_id)"
        " ORDER BY n.name, graph"
    )


def test_a_file_that_is_still_there_is_read(load, trace, written, kernel_text):
    file = written(kernel_text("triton_poi_k_0"))
    session = load(trace({"triton_poi_k_0": str(file), "triton_gone": "/none/cgone.py"}))
    assert complete_sources(session) == 1
    assert complete_sources(session) == 0
    (row,) = sources(session)
    assert (row["name"], row["evidence"], row["heuristic"], row["hash"]) == (
        "triton_poi_k_0", "launch", "pointwise", file.stem,
    )  # fmt: skip
    assert source_locations(session) == {
        "triton_poi_k_0": SourceLocation(str(file), Grade.EXACT, row["line"], row["end_line"], Grade.EXACT)
    }


def test_copies_beside_the_trace_come_first(load, trace, written, kernel_text):
    copy = written(kernel_text("k"), "trace.kernels")
    session = load(trace({"k": f"/gone/{copy.name}"}))
    assert complete_sources(session) == 1
    assert sources(session)[0]["file"] == f"/gone/{copy.name}"


def test_what_is_recorded_stays(load, trace, written, kernel_text):
    file = written(kernel_text("k"))
    session = load(trace({"k": str(file)}))
    ((name_id,),) = session.query("SELECT name_id FROM kernel_names WHERE name = 'k' AND kind = 'kernel'")
    recorded = {"name_id": name_id, "kind": "inductor", "evidence": "launch", "file": "/a.py", "line": 3}
    session.replace_rows("kernel_sources", [{**recorded, "hash": file.stem, "graph": "0_forward"}])
    assert complete_sources(session) == 0
    session.replace_rows("kernel_sources", [recorded])
    assert complete_sources(session) == 1
    assert [row["file"] for row in sources(session)] == ["/a.py", str(file)]


def test_launches_outweigh_names_and_a_users_own_file_the_generated_one(load, trace):
    session = load(trace({}, ("k", "scale", "twice", "nowhere")))
    ids = dict(session.query("SELECT name, name_id FROM kernel_names"))
    launched = {"name_id": ids["k"], "kind": "inductor", "evidence": "launch", "file": "/a.py", "line": 3}
    rows = [
        launched,
        {**launched, "graph": "1_forward"},
        {"name_id": ids["k"], "kind": "inductor", "evidence": "process", "file": "/b.py"},
        {"name_id": ids["scale"], "kind": "inductor", "evidence": "process", "file": "/c.py", "line": 9,
         "user_file": "/home/me/kernels.py", "user_line": 12},
        {"name_id": ids["twice"], "kind": "inductor", "evidence": "process", "file": "/d.py"},
        {"name_id": ids["twice"], "kind": "inductor", "evidence": "process", "file": "/e.py"},
        {"name_id": ids["nowhere"], "kind": "inductor", "evidence": "process"},
    ]  # fmt: skip
    session.replace_rows("kernel_sources", rows)
    assert source_locations(session) == {
        "k": SourceLocation("/a.py", Grade.EXACT, 3, None, Grade.EXACT),
        "scale": SourceLocation("/home/me/kernels.py", Grade.EXACT, 12, None, Grade.EXACT),
    }
