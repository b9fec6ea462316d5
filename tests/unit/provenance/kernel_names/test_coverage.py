"""How much of what exists is understood: kernels of releases, and their operands in recorded traces."""

import json
import lzma

import pytest

from opscope.provenance.kernel_names.decoder import decode


@pytest.mark.exhaustive(few=False)
@pytest.mark.parametrize("release", ["2.6.0", "2.11.0", "2.13.0", "2.14.1"])
def test_kernels_of_a_release_have_a_family(release, shared):
    path = shared / "provenance" / f"kernel_units_{release}.json.xz"
    names = json.loads(lzma.decompress(path.read_bytes()))
    assert sum(decode.__wrapped__(name).family is not None for name in names) == len(names)


# The element types of recorded operators, as kernels spell them.
_RECORDED = {
    "float": "f32", "c10::Half": "f16", "c10::BFloat16": "bf16", "double": "f64", "long int": "s64",
    "int": "s32", "bool": "bool", "unsigned char": "u8", "c10::complex<float>": "cf32",
}  # fmt: skip
_WITH_TYPES = """
SELECT DISTINCT n.name AS kernel, o.name AS operator, o.input_types::VARCHAR AS types
FROM device_activities a JOIN kernel_names n USING (name_id) JOIN operators o USING (operator_id)
WHERE a.kind = 'kernel' AND o.input_types IS NOT NULL"""
# These convert integers to 64 bits before their kernel runs.
_CONVERTING = ("aten::sum", "aten::cumsum")


@pytest.mark.parametrize("trace", ["bert_train_bf16", "gpt2_generate_fp16", "misc_ops_fp32"])
def test_operand_types_agree_with_what_the_operator_was_given(trace, shared, load):
    session = load(shared / "traces" / "h200" / f"{trace}.json.gz")
    compared = 0
    for kernel, operator, types in session.query(_WITH_TYPES):
        given = {_RECORDED[name] for name in json.loads(types) if name in _RECORDED}
        operand = decode(kernel).operand_type
        if operand is None or not given or operator in _CONVERTING:
            continue
        assert ("f32" if operand == "tf32" else operand) in given, (kernel, operator, given)
        compared += 1
    assert compared > 20
