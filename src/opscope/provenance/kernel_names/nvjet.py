"""Names of cuBLASLt's run-time built matrix multiplications, `nvjet_sm90_tst_128x160_64x5_2x4_h_bz_NTT`.

The order of the fields is certain (libcublasLt 13 holds the format strings
`nvjet_sm%d_%s_%dx%d_%dx%d_%dx%d%s_%c_…`); their meaning is undocumented and inferred. Releases before cuBLAS
13 leave the architecture out: then it is unknown.
"""

from __future__ import annotations

import re

from opscope.provenance.kernel_names.decoded_kernel import Reading

__all__ = ["read_nvjet"]

_NAME = re.compile(
    r"nvjet_(?:sm(?P<architecture>\d+)_)?(?P<types>[a-z]+)_(?:mma_)?(?P<m>\d+)x(?P<n>\d+)"
    r"(?:_(?P<k>\d+)x(?P<stages>\d+)(?:_(?P<cluster>\d+x\d+))?|x(?P<k3>\d+)(?:_(?P<stages3>\d+))?(?:_\d+x\d+x\d+)?)?"
    r"(?P<words>(?:_[A-Za-z0-9]+)*?)(?:_(?P<layout>[NTC]{3,4}))?"
)
# t was checked against recorded operand types; the others go by likeness.
_LETTERS = {"h": "f16", "t": "bf16", "s": "f32", "d": "f64", "q": "e4m3", "r": "e5m2"}
_EPILOGUE = re.compile(r"(?:d?relu|d?gelu)?bias|(?:re|ge)lu(?:aux)?|d(?:re|ge)lu|bgrad[ab]?|(?:re|ge)lu_?aux")


def read_nvjet(text: str) -> Reading | None:
    """What a name of this grammar says; None if it is not one."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    words = [word for word in match.group("words").split("_") if word]
    types = match.group("types")
    k = match.group("k") or match.group("k3")
    stages = match.group("stages") or match.group("stages3")
    tile = f"{match.group('m')}x{match.group('n')}"
    inferred = {
        "library": "cublasLt",
        "tile": f"{tile}x{k}" if k else tile,
        "stages": int(stages) if stages else None,
        "cluster": match.group("cluster"),
        "layout": match.group("layout"),
        "split_k": "splitK" in words,
        "tensor_core": True,
        "epilogue": "_".join(word for word in words if _EPILOGUE.fullmatch(word)) or None,
    }
    if len(types) == 3:
        operand, accumulator, output = (_LETTERS.get(letter) for letter in types)
        inferred.update(operand_type=operand, accumulator_type=accumulator, output_type=output)
    architecture = match.group("architecture")
    return Reading(
        {"family": "gemm", "architecture": f"sm{architecture}" if architecture else None}, inferred
    )
