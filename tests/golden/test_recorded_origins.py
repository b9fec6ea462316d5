"""Recordings of opscope's own capture on an H200 (torch 2.11.0), analyzed where none of it is installed."""

from pathlib import Path

import opscope
from opscope.analysis.provenance import read_provenance
from opscope.analysis.summary import Summary
from opscope.model.origin import Grade

RECORDED = Path(__file__).parent / "recorded"


def recording(name):
    return opscope.load(RECORDED / f"{name}.json.gz")


def kernel(session, prefix):
    found = [facts for name, facts in read_provenance(session).kernels.items() if name.startswith(prefix)]
    assert len(found) == 1
    return found[0]


def test_a_kernel_of_an_inline_extension_has_its_line():
    with recording("inline_cuda_extension") as session:
        square = kernel(session, "square_kernel(")
    assert square.binary == "opscope_square.so"
    assert (square.library, square.grades["library"]) == ("opscope_square", "exact")
    assert square.location.file.endswith("/cuda.cu")
    assert (square.location.line, square.location.grade) == (7, Grade.EXACT)


def test_a_hand_written_triton_kernel_has_its_line():
    with recording("triton_kernel") as session:
        double = kernel(session, "double_kernel")
    assert (double.library, double.grades["library"]) == ("triton", "exact")
    assert double.location.file.endswith("/doubling.py")
    assert (double.location.line, double.location.grade) == (6, Grade.EXACT)


def test_every_kernel_of_torch_is_exact():
    with recording("compiled_transformer_layer") as session:
        summary = Summary(session).complete()
        assert all(check.holds for check in session.check())
    assert summary.torch_version == "2.11.0"
    assert summary.accuracy.attributed_fraction == 1.0
    assert summary.accuracy.by_grade["kernel_unit"] == {"exact": 1.0}
    assert summary.accuracy.aten_kernel_single_unit_fraction == 1.0


def test_generated_kernels_lead_to_the_nodes_they_compute():
    with recording("compiled_transformer_layer") as session:
        generated = session.query(
            "SELECT n.name, s.graph, s.original_aten, s.post_grad_nodes "
            "FROM kernel_sources s JOIN kernel_names n USING (name_id) WHERE s.kind = 'inductor'"
        )
        compiled = session.query("SELECT name FROM kernel_names WHERE name LIKE 'triton_%'")
    assert {name for name, *_ in generated} == {name for (name,) in compiled}
    assert {graph for _, graph, _, _ in generated} == {"0_forward", "0_backward"}
    assert all(original for _, _, original, _ in generated)
    # The compiler maps kernels of the forward graph alone to its lowered nodes.
    assert all(bool(nodes) is (graph == "0_forward") for _, graph, _, nodes in generated)


def test_launches_of_generated_kernels_say_how_they_were_compiled():
    with recording("compiled_transformer_layer") as session:
        kernels = read_provenance(session).kernels
    generated = {name: facts for name, facts in kernels.items() if name.startswith("triton_")}
    assert generated
    for facts in generated.values():
        assert facts.triton["configurations"][0]["num_warps"] > 0
        assert facts.triton["file"].endswith(f"{facts.triton['hash']}.py")
        assert facts.generated[0].copy.endswith(f"{facts.triton['hash']}.py")
