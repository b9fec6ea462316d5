"""[families] The families of kernels: a closed set, each with its meaning and the category of work it belongs to.

A family says what a kernel does, not which library it comes from nor how well it does it. The category is a
name of `categories.toml`. This module imports nothing of its package.

[words] Reading words of a kernel's name: direction, and families by the rules of `family_rules.toml`.

Answers are kept, since a program has far fewer functions than instances of them.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


# ---- families


@dataclass(frozen=True)
class Family:
    """One kind of kernel."""

    name: str
    category: str
    meaning: str


_DECLARED = {
    "matrix": {
        "gemm": "Multiplies matrices (single, batched or strided batched)",
        "grouped_gemm": "Multiplies several matrix pairs of different shapes in one launch",
        "moe_gemm": "Multiplies tokens with the weights of the experts they are routed to",
        "gemv": "Multiplies a matrix with a vector",
        "split_k_reduction": "Adds the partial products of a matrix multiplication that was split along K",
        "gemm_helper": "Prepares operands or pointers of a matrix multiplication, or finishes its result",
        "triangular_multiply": "Multiplies a triangular matrix with a matrix or vector",
        "triangular_solve": "Solves a triangular system of equations",
        "symmetric_multiply": "Multiplies a symmetric, Hermitian or banded matrix with a matrix or vector",
        "rank_update": "Adds an outer product or a product with its own transpose to a matrix",
        "blas_vector": "A vector operation of BLAS level 1: scaling, sum, norm, dot product, rotation",
        "matrix_copy": "Copies, scales, adds, transposes or sets matrices for a dense algebra library",
        "factorization": "Factorizes or inverts a matrix: LU, Cholesky, QR, eigenvalues, singular values",
        "linear_algebra": "A step around a factorization: pivots, row exchanges, norms, linear combinations",
        "distance": "Distances between pairs of vectors (cdist, pdist)",
        "fft": "A step of a Fourier transform",
        "rnn": "A step of a recurrent network (LSTM, GRU, plain)",
        "sparse_matrix": "Multiplies or combines sparse matrices, or prunes to a sparse format",
    },
    "attention": {
        "attention_flash": "Attention by the FlashAttention algorithm",
        "attention_mem_efficient": "Attention by the memory-efficient CUTLASS kernels",
        "attention_cudnn": "Attention by cuDNN",
        "attention_paged": "Attention over a paged key-value cache",
        "attention": "Attention, algorithm not told by the name",
        "attention_helper": "Prepares or finishes attention: bias of projections, masks, merging of parts",
        "kv_cache": "Writes, copies or reorders the key-value cache",
        "rotary_embedding": "Applies rotary position embeddings",
    },
    "convolution": {
        "convolution": "Convolves, or computes the gradient of data or weights of a convolution",
        "depthwise_convolution": "The same with one filter per channel",
        "convolution_helper": "Prepares offsets, filters or tiles of a convolution, or finishes its result",
        "im2col": "Unfolds image patches into a matrix, or folds them back",
    },
    "normalization": {
        "layer_norm": "Layer normalization",
        "rms_norm": "Root-mean-square normalization",
        "batch_norm": "Batch normalization",
        "group_norm": "Group normalization",
        "instance_norm": "Instance normalization",
        "local_response_norm": "Local response normalization across channels",
        "weight_norm": "Weight normalization",
        "renorm": "Limits the norm of sub-tensors",
    },
    "activation": {
        "softmax": "Softmax or log-softmax",
        "activation": "Applies an activation function to each element",
        "gated_activation": "Multiplies an activation of one half with the other half (SwiGLU, GEGLU)",
    },
    "loss": {
        "loss": "A loss function or its gradient",
        "ctc_loss": "Connectionist temporal classification loss",
    },
    "optimizer": {
        "optimizer": "A fused optimizer step over many tensors",
        "foreach": "One elementwise operation over a list of tensors in one launch",
        "grad_scaling": "Checks gradients for overflow or adjusts the loss scale",
        "foreach_norm": "Norms of a list of tensors",
    },
    "elementwise": {
        "elementwise": "Computes each output element from the input elements at the same place",
        "compare": "Compares elements or combines truth values",
        "masked_fill": "Fills, scales or scatters where a mask is set",
        "complex": "Builds, conjugates or takes apart complex numbers",
        "fused_pointwise": "Several elementwise operations in one generated kernel",
        "fused_template": "A matrix, convolution or attention template with operations fused onto it",
        "quantize": "Converts to or from a quantized format",
        "cross_product": "Vector cross product along a dimension",
    },
    "reduction": {
        "reduction": "Reduces along dimensions: sum, mean, norm, extrema, any, all",
        "fused_reduction": "A reduction with other operations fused in one generated kernel",
        "segment_reduction": "Reduces segments, or runs of equal keys",
    },
    "sort_scan": {
        "sort": "Sorts",
        "radix_select": "Selects by radix: top-k, k-th value, median",
        "mode": "Finds the most frequent value",
        "scan": "Cumulative operation: sum, product, extrema",
        "unique": "Finds distinct or consecutive distinct values",
        "nonzero": "Finds or counts the places of nonzero elements",
        "select": "Keeps the elements that satisfy a condition",
        "search": "Finds the place of values in sorted data",
        "histogram": "Counts values in bins",
        "moe_routing": "Chooses experts for tokens, counts, sorts or permutes tokens by expert",
    },
    "embedding": {
        "index": "Reads or writes elements by index tensors (index, index_put, take, put)",
        "index_select": "Reads whole rows by an index vector",
        "index_add": "Adds, copies or reduces rows into places given by an index vector",
        "gather": "Gathers along a dimension by an index tensor",
        "scatter": "Scatters along a dimension by an index tensor, with or without reduction",
        "embedding": "Looks up embedding rows, or adds their gradients",
        "embedding_bag": "Looks up and reduces bags of embedding rows, or adds their gradients",
    },
    "random": {
        "random": "Draws random numbers",
        "dropout": "Zeroes elements at random and scales the rest",
        "sampling": "Draws samples from given probabilities",
        "permutation": "Makes a random permutation",
    },
    "pooling": {
        "pooling": "Pools windows: maximum, average, adaptive, fractional; or undoes it",
        "upsample": "Resizes by interpolation",
        "grid_sample": "Samples at the places of a grid, or makes the grid",
        "roi": "Pools regions of interest, or suppresses overlapping boxes",
    },
    "copy_transfer": {
        "memcpy": "Copy by the driver",
    },
    "memory": {
        "memset": "Set by the driver",
        "copy": "Copies, with or without change of type",
        "transpose": "Copies into another order of dimensions",
        "layout_transform": "Changes between channel-first and channel-last layouts, pads or folds channels",
        "cat": "Concatenates tensors",
        "split": "Splits one tensor into several",
        "fill": "Fills with a value",
        "arange": "Fills with a sequence (arange, linspace, eye)",
        "padding": "Pads by reflection, replication or a constant, or removes padding",
        "triangular": "Keeps or lists an upper or lower triangle (tril, triu)",
        "roll": "Rolls or flips along dimensions",
        "jagged": "Converts or combines jagged and padded tensors",
        "sparse_layout": "Converts, checks or coalesces the indices of sparse tensors",
        "permute": "Reorders rows, features or tables",
    },
    "communication": {
        "collective": "Exchanges or reduces data among devices",
        "device_communication": "Signals, waits, puts or gets among devices outside of a collective",
    },
    "control": {
        "wait": "Waits on purpose",
        "assertion": "Checks a condition or looks for bad values on the device",
        "control": "Sets flags, handles or states; computes nothing of the model",
    },
}

FAMILIES: tuple[Family, ...] = tuple(
    Family(name, category, meaning)
    for category, members in _DECLARED.items()
    for name, meaning in members.items()
)
_BY_NAME = {declared.name: declared for declared in FAMILIES}


def family(name: str) -> Family:
    """The declared family of that name.

    Raises:
        KeyError: No family of that name is declared.
    """
    return _BY_NAME[name]


def category_of_family(name: str) -> str:
    """Category of the family of that name.

    Raises:
        KeyError: No family of that name is declared.
    """
    return _BY_NAME[name].category


# ---- words

_BACKWARD = re.compile(
    r"[bB]ackward|[bB]prop|[dwDW]grad|dot_do_o|convert_dq|dbias|_bwd|bwd_|Bwd|[gG]rad_?[iI]nput|gradinput|grad_weight|maxgrad|_bw_|_bw$|_bp\d?_?"
    r"|GradKernel|accGrad|GammaBeta|InternalGradients|layer_norm_grad|_grad_|_grad$|dbn_|^flash_bwd|bwtr|Grad[A-Z_]"
)
_FORWARD = re.compile(
    r"[fF]orward|[fF]prop|_fwd|fwd_|Fwd|[uU]pdate_?[oO]utput|_fw_|_fw$|_fp$|_fp_|fwtr|bn_fw|^flash_fwd|_out_frame"
)


@lru_cache(maxsize=4096)
def direction_of(text: str) -> str | None:
    """`backward` or `forward` if the words of the text say so."""
    if _BACKWARD.search(text):
        return "backward"
    return "forward" if _FORWARD.search(text) else None


class FamilyRules:
    """The rules of one section of `family_rules.toml`, read when first asked."""

    def __init__(self, section: str) -> None:
        self.section = section
        self.find = lru_cache(maxsize=4096)(self._find)

    def _find(self, text: str) -> str | None:
        """The family of the first rule that is found in the text; None if none is."""
        return next((family for family, pattern in _rules()[self.section] if pattern.search(text)), None)


@cache
def _rules() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    text = resources.files(__package__).joinpath("family_rules.toml").read_text(encoding="utf-8")
    return {
        section: [(rule["family"], re.compile("|".join(rule["patterns"]))) for rule in rules]
        for section, rules in tomllib.loads(text).items()
    }
