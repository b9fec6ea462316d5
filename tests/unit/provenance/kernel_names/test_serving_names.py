"""Families of kernels of serving engines and the libraries they call, labelled by hand from their sources."""

from pathlib import Path

from case_tables import cases
from opscope.provenance.kernel_names.decoder import decode

CASES = Path(__file__).parent / "cases" / "serving.tsv"


def labelled():
    lines = CASES.read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines if line and not line.startswith("#")]


def test_every_labelled_kernel_has_its_family_and_one_in_a_hundred_none():
    names = labelled()
    assert len(names) >= 300
    assert len({name for _, name in names}) == len(names)
    wrong = [
        (family, decode(name).family, name[:90]) for family, name in names if decode(name).family != family
    ]
    assert not wrong
    assert sum(decode(name).family is None for _, name in names) <= 0.01 * len(names)


@cases("name", "fields")
def test_names_tell_library_types_and_tile(name, fields):
    decoded = decode(name)
    assert {field: getattr(decoded, field) for field in fields} == fields
