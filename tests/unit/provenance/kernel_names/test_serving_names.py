"""Families of kernels of serving engines and the libraries they call, labelled by hand from their sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.provenance.kernel_names.decoder import decode

CASES = Path(__file__).parent / "cases" / "serving.tsv"


def labelled() -> list[tuple[str, str]]:
    lines = CASES.read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines if line and not line.startswith("#")]  # type: ignore[misc]


def test_every_labelled_kernel_has_its_family() -> None:
    names = labelled()
    assert len(names) >= 300
    assert len({name for _, name in names}) == len(names)
    wrong = [
        (family, decode(name).family, name[:90]) for family, name in names if decode(name).family != family
    ]
    assert not wrong


def test_at_most_one_in_a_hundred_is_of_no_family() -> None:
    names = labelled()
    assert sum(decode(name).family is None for _, name in names) <= 0.01 * len(names)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (
            "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu",
            {"library": "triton_kernels", "operand_type": "bf16", "tile": "16x128x256"},
        ),
        (
            "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_"
            "schedP2x1x2x3_biasM_bN_tma_tmaOpt_clmp_swiGlu_dynBatch_sm100f",
            {"operand_type": "e4m3", "output_type": "e4m3", "accumulator_type": "f32", "tile": "128x16x256"},
        ),
        ("_ZN5aiter19topksoftmax_4x256x8E", {"library": "aiter"}),
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x32x256_MI16x16x1_SN_LDSB1_ISA942_IU1_K1",
            {"library": "tensile", "operand_type": "bf16", "tile": "32x32x256", "architecture": "gfx942"},
        ),
    ],
)
def test_names_tell_library_types_and_tile(name: str, fields: dict[str, str]) -> None:
    decoded = decode(name)
    assert {field: getattr(decoded, field) for field in fields} == fields
