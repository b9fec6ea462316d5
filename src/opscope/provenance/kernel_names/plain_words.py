"""The last resort: a program's own kernel named by a plain word of what it does, `square_kernel`.

A name is taken only when it consists of such words and nothing else; anything more is left unknown.
"""

from __future__ import annotations

import re

from opscope.provenance.kernel_names.decoded_kernel import Reading

__all__ = ["read_plain_words"]

_AFFIX = (
    r"(?:_?(?:kernel|cuda|gpu|triton|fwd|bwd|forward|backward|f32|f16|bf16|fp32|fp16|float|half"
    r"|inplace|vectorized|v\d|\d))*"
)
_WORDS = (
    (
        "elementwise",
        r"(?:vec(?:tor)?|tensor|array|elementwise|ew)?_?(?:add|sub|mul|div|square|r?sqrt|exp|log|abs|neg|pow|sin"
        r"|cos|scale|s?axpy|s?axpby|clamp|where|lerp|fma|(?:bias|residual)_add|add_(?:bias|residual)"
        r"|elementwise|pointwise)",
    ),
    (
        "activation",
        r"(?:fast_?)?(?:gelu|relu|silu|swish|sigmoid|tanh|leaky_relu|elu|mish)(?:_(?:tanh|erf|fast|exact|new))?",
    ),
    ("softmax", r"(?:online_|fused_|safe_|log_?)?softmax"),
    (
        "reduction",
        r"(?:block_|row_|col_|warp_|vector_|array_)?(?:reduce(?:_sum|_max)?|sum|mean|max|min|reduction)",
    ),
    ("gemm", r"(?:naive_|tiled_|batched_|[sdh])?(?:gemm|matmul|mat_?mul|bmm)(?:_tiled|_naive)?"),
    ("transpose", r"(?:matrix_?|mat_?)?transpose"),
    ("copy", r"(?:vec_?|vectorized_)?(?:copy|memcpy|clone)"),
    ("fill", r"(?:fill|memset|set_?(?:zero|value)|zero|init(?:ialize)?)"),
    ("scan", r"(?:prefix_?sum|(?:inclusive|exclusive)_?scan|scan|cumsum)"),
    ("histogram", r"histogram"),
    ("wait", r"(?:spin|sleep|delay|busy_?wait|nanosleep)"),
)
_LONGEST = 60
_PATTERNS = tuple((family, re.compile(rf"_*{words}{_AFFIX}_*", re.IGNORECASE)) for family, words in _WORDS)


def read_plain_words(last: str) -> Reading | None:
    """What the last part of a function says, if it is all plain words; else None."""
    if len(last) > _LONGEST:
        return None
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", last)
    family = next((name for name, pattern in _PATTERNS if pattern.fullmatch(snake)), None)
    return Reading(inferred={"family": family}) if family is not None else None
