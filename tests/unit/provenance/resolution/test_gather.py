"""Which evidence a Session gives: its labels, what it recorded, its devices."""

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.model.origin import Grade, RecordedKernel, RecordedUnit
from opscope.provenance.resolution.evidence import gather_evidence
from opscope.provenance.torch_releases import release_versions

from .conftest import recorded_units


def trace(kernel="k"):
    return TraceBuilder().operator("aten::mm", 1, 5).launch(2).kernel(kernel, 9, 3)


def gathered(session):
    return gather_evidence(session, [name for (name,) in session.query("SELECT name FROM kernel_names")])


NEWEST = release_versions()[-1]


@cases("torch", "version", "grade", "asked")
def test_the_tables_that_are_asked(load, record, torch, version, grade, asked):  # noqa: PLR0917
    paths = [record(trace(), f"r{rank}.json", torch=label) for rank, label in enumerate(torch or [None])]
    evidence = gathered(load(paths))
    assert (evidence.recognition.version, evidence.recognition.grade) == (version, grade)
    assert (evidence.operators.version, evidence.operators.grade) == (version or NEWEST, grade)
    found = [[source.index.version, source.grade] for source in evidence.sources]
    assert found == asked if asked else {one for _, one in found} == {Grade.NEIGHBOR_VERSION}
    if torch == ["2.12.0+cu126"]:
        assert evidence.recognition.release == "2.12.0"


class TestLines:
    """`softmax_cuda_out`, line 1091 of the index, of a release whose libraries tell a range, 1420 to 1447."""

    @cases("torch", "shown")
    def test_a_range_is_of_the_users_own_release(self, load, record, torch, shown):
        evidence = gathered(load(record(trace(), torch=torch)))
        source = evidence.sources[-1]
        definition = source.index.functor("at::native::structured_softmax_cuda_out::impl")
        assert definition is not None
        place = source.locate(definition)
        softmax = evidence.operators.entry("aten::_softmax")
        tabled = evidence.location(softmax.served["CUDA"].place)
        assert (tabled.line, tabled.end_line, tabled.url) == (place.line, place.end_line, place.url)
        assert f"{str(place).partition(':')[2]} {place.line_grade}" == shown
        assert place.url.endswith("#L1420-L1447")


UNITS = {
    "a": RecordedUnit("a.cu"), "src/a": RecordedUnit("a.cu", "1", "src/a.cu"),
    "b": RecordedUnit("b.cu"), "src/b": RecordedUnit("b.cu", "1", "src/b.cu"),
}  # fmt: skip


@cases("of_ranks", "library", "names", "paths")
def test_recorded_units(load, record, of_ranks, library, names, paths):  # noqa: PLR0917
    files = []
    for rank, (name, build, units) in enumerate(of_ranks):
        kernel = RecordedKernel("k", name, build or None, tuple(UNITS[one] for one in units))
        files.append(record(trace(), f"r{rank}.json", kernels=(kernel,)))
    expected = recorded_units(library, tuple(names), tuple(one or None for one in paths))
    assert gathered(load(files)).recorded == {"k": expected}


@pytest.mark.parametrize(
    ("builder", "backend"), [(trace(), "CUDA"), (TraceBuilder().operator("aten::mm", 1, 5), "CPU")]
)
def test_the_backend_is_that_of_the_recorded_devices(load, builder, backend):
    assert gathered(load(builder)).backend == backend
