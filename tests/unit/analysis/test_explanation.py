"""What a name is found to be, and what is gathered of it, with a recording and without."""

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.analysis.explanation import Subject, explain
from opscope.errors import InputError
from opscope.model.evidence import Grade

from .conftest import FILL_KERNEL, FILL_KERNEL_MANGLED, GELU_KERNEL

pytestmark = pytest.mark.usefixtures("releases_read_once")


def of(name):
    return explain(name, torch_version="2.6.0")


class TestNames:
    @cases("name", "found", "subject")
    def test_a_name_is_found(self, name, found, subject):
        explanation = of(name)
        assert (explanation.name, explanation.subject) == (found, subject)
        assert explanation.torch_version == "2.6.0"

    @cases("name", "similar")
    def test_an_unknown_name_names_similar_ones(self, name, similar):
        with pytest.raises(InputError) as raised:
            of(name)
        assert similar in (raised.value.hint or "")

    def test_a_recorded_kernel_is_named_in_any_way(self, load):
        built = TraceBuilder().operator("x", 0, 10).launch(1).kernel(FILL_KERNEL, 20, 5)
        session = load(built.launch(3).kernel("_Z9my_kernelPfl", 30, 2))
        full, mangled = explain(FILL_KERNEL, session), explain(FILL_KERNEL_MANGLED, session)
        short, last = (
            explain("at::native::vectorized_elementwise_kernel", session),
            explain("vectorized_elementwise_kernel", session),
        )
        for one in (full, mangled, short, last):
            assert (one.name, [use.facts.name for use in one.kernels]) == (FILL_KERNEL, [FILL_KERNEL])
            assert one.is_recorded
        (use,) = explain("my_kernel(float*, long)", session).kernels
        assert use.facts.name == "_Z9my_kernelPfl"

    def test_a_kernel_named_as_an_operator_without_its_namespace(self, load):
        built = TraceBuilder().operator("mine", 0, 10).launch(1).kernel("gelu", 20, 5)
        assert explain("gelu", load(built)).subject is Subject.KERNEL


class TestOperator:
    @pytest.mark.parametrize("name", ["aten::add.Tensor", "add.Tensor"])
    def test_one_overload(self, name):
        add = of(name)
        assert (add.name, add.overload) == ("aten::add", "Tensor")
        assert [function.overload for function in add.functions] == ["Tensor"]
        assert [node.name for node in add.derivatives] == ["AddBackward0"]

    def test_its_chain_is_known_no_better_than_the_release(self, load):
        built = TraceBuilder().operator("aten::gelu", 0, 10).launch(1).kernel(GELU_KERNEL, 20, 5)
        softmax = explain("aten::_softmax", load(built))
        assert softmax.torch_version_grade is Grade.NEIGHBOR_VERSION  # several releases know that kernel
        grades = {function.overload_grade for function in (*softmax.functions, *softmax.derivatives)}
        assert grades == {Grade.NEIGHBOR_VERSION}


def test_a_category_of_a_recording(example):
    matrix = explain("matrix", example)
    assert {operator.category for operator in matrix.operators} == {"matrix"}
    assert matrix.operators[0].name == "aten::addmm"
    assert {use.facts.category for use in matrix.kernels} == {"matrix"}
    assert len(matrix.functions) > 300


def test_a_file_has_its_kernels_or_the_function_that_launches_them(example):
    softmax = explain("SoftMax.cu", example)
    assert [operator.name for operator in softmax.operators] == ["aten::_softmax"]
    assert [use.facts.function for use in softmax.kernels] == ["(anonymous namespace)::softmax_warp_forward"]
    assert "softmax_cuda_out" in {function.cuda_function for function in softmax.functions}
    # Activation.cpp holds no kernel, but what launches one.
    activation = explain("cuda/Activation.cpp", example)
    assert [operator.name for operator in activation.operators] == ["aten::gelu"]
    assert activation.kernels == ()


def test_an_unrecorded_kernel_says_so(example):
    fill = explain(FILL_KERNEL.replace("<4,", "<2,"), example)
    assert not fill.is_recorded
    assert fill.kernels[0].facts.family == "fill"
