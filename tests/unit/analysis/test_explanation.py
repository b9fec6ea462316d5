"""What a name is found to be, and what is gathered of it, with a recording and without."""

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.analysis.explanation import Subject, explain
from opscope.errors import InputError
from opscope.model.origin import Grade

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
    def test_its_chain_is_known_no_better_than_the_release(self, load):
        built = TraceBuilder().operator("aten::gelu", 0, 10).launch(1).kernel(GELU_KERNEL, 20, 5)
        softmax = explain("aten::_softmax", load(built))
        assert softmax.torch_version_grade is Grade.NEIGHBOR_VERSION  # several releases know that kernel
        grades = {function.overload_grade for function in (*softmax.functions, *softmax.derivatives)}
        assert grades == {Grade.NEIGHBOR_VERSION}
