"""A recorded call as a file: what is written of each argument, and that the file runs."""

import runpy

import pytest

from case_tables import cases
from opscope.errors import InputError
from opscope.extraction.call_file import call_file
from opscope.operators.arguments import parse_arguments, with_list_types


def call(name, *columns, overload=None):
    """Shapes, types, strides and values, by argument."""
    shapes, types, *rest = columns
    strides, concrete = [*rest, None, None][:2]
    made = parse_arguments(
        f"aten::{name}", overload=overload, shapes=shapes, types=types, strides=strides, concrete=concrete
    )
    return with_list_types(made, dict.fromkeys(made.list_positions, "float"))  # which kernels tell


def text_of(one):
    return call_file(one, what="A call.", name="call.py").text


@cases("given", "lines")
def test_arguments_are_made_as_they_were_recorded(given, lines):
    text = text_of(call(*given))
    for line in lines:
        assert line in text


@cases("given", "why")
def test_what_was_not_recorded_is_said(given, why):
    with pytest.raises(InputError, match=why):
        text_of(call(*given))


@pytest.mark.torch
@cases("given")
def test_the_file_runs(given, tmp_path):
    torch = pytest.importorskip("torch")
    file = tmp_path / "call.py"  # Triton reads a kernel's source there
    file.write_text(text_of(call(*given)), "utf-8")
    names = runpy.run_path(str(file))
    inputs = names["make_inputs"](torch.device("cpu"), 0)
    expected = names["reference"](*inputs)
    found = names["mine"](*names["make_inputs"](torch.device("cpu"), 0))
    torch.testing.assert_close(found, expected, equal_nan=True)
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    recorded = [
        shape for shape, kind in zip(given[1], given[2], strict=True) if kind in {"float", "long int"}
    ]
    assert [list(one.shape) for one in tensors] == recorded
