"""Taking C++ names apart."""

from case_tables import cases
from opscope.provenance.kernel_names.cxx_name import entities, parse, template_arguments, without_module


@cases("name", "function", "arguments")
def test_function_and_template_arguments(name, function, arguments):
    assert parse(name).function == function
    assert list(template_arguments(name)) == arguments


@cases("name", "expected")
def test_owners_go_from_outer_to_inner(name, expected):
    assert list(owners(name)) == expected


def owners(name):
    found = entities(parse(name).template_arguments)
    return tuple(dict.fromkeys(without_module(entity.name) for entity in found))


@cases("name", "expected")
def test_the_function_of_a_mangled_name(name, expected):
    assert parse(name).function == expected
    assert template_arguments(name) == ()
    assert owners(name) == ()
