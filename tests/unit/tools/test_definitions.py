from case_tables import cases
from torch_tables.definitions import coarse_type, signature_distance


def places(definitions):
    return [(row.kind, f"{row.scope}::{row.name}", row.line, row.end_line) for row in definitions]


@cases("text", "expected", "template", "parameters")
def test_each_definition_has_its_lines(read, text, expected, template, parameters):
    found = read(text)
    assert [list(place) for place in places(found)] == expected
    assert template is None or list(found[0].template_parameters) == template
    assert parameters in (None, [row.parameters for row in found])


@cases("head", "defined")
def test_what_a_brace_opens(read, head, defined):
    found = [f"{row.kind} {row.scope}::{row.name}" for row in read(f"{head} {{ }};\nint behind;")]
    assert found == ([] if defined is None else [defined])


@cases("head")
def test_kernels_however_their_bounds_are_written(read, head):
    (found,) = read(f"{head} {{\n  f<<<grid, block, 0, stream>>>(x);\n}}\n")
    assert (found.kind, found.name, found.parameters) == ("kernel", "k", "T*")
    assert found.line == head.count("\n") + 1


def test_a_specialization_is_told_from_its_template(read):
    (*found,) = read(
        """
        template <> void f<int>(int x) {}
        template <class T> struct A<T*> {};
        template <class T> void f(T x) {}
        template <class T> struct A {};
        """
    )
    assert [row.is_specialization for row in found] == [True, True, False, False]


@cases("text", "names")
def test_names_of_template_parameters(read, text, names):
    assert read(f"template <{text}> struct A {{}};")[0].template_parameters == tuple(names)


@cases("text", "types")
def test_types_of_parameters_are_without_names_and_defaults(read, text, types):
    assert read(f"void f({text}) {{}}")[0].parameters == types


@cases("written", "coarse")
def test_cpp_and_schema_types_become_one_spelling(written, coarse):
    assert coarse_type(written) == coarse


def test_an_alias_may_be_any_type():
    assert signature_distance("Tensor, simple_hx_type", ["Tensor", "Tensor"]) == 1
