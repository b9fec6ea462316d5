"""Targets of nvcc: what the words of a command line mean, the options that build for them, what runs where.

Machine code of a target runs on its compute capability and on later ones of the same major version; with a
letter it has features of one GPU (`a`) or one family (`f`) and runs there alone. PTX of a general target is
compiled by the driver for any later GPU.

Source: nvcc 13.0 documentation, "GPU Compilation"; CUDA C++ Programming Guide 13.0, "Binary compatibility".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from opscope.errors import InputError

__all__ = [
    "ALL",
    "ALL_MAJOR",
    "NATIVE",
    "Target",
    "choose_targets",
    "code_options",
    "parse_target",
    "ptx_target",
    "runs_on",
]

NATIVE, ALL, ALL_MAJOR = "native", "all", "all-major"
_WORD = re.compile(r"(?:sm_)?(?:(\d{1,2})\.(\d)|(\d{1,2})(\d))([af]?)", re.IGNORECASE)
_PTX_WORD = re.compile(r"compute_(\d+[af]?)", re.IGNORECASE)
Explanation = Callable[["Target"], "str | None"]


@dataclass(frozen=True, order=True)
class Target:
    """One real architecture; they sort by capability, general ones first."""

    major: int
    minor: int
    suffix: str = ""

    @property
    def compute_capability(self) -> str:
        """As `9.0`."""
        return f"{self.major}.{self.minor}"

    @property
    def number(self) -> str:
        """As `90a`."""
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def name(self) -> str:
        """Of its machine code: `sm_90a`."""
        return f"sm_{self.number}"

    @property
    def ptx_name(self) -> str:
        """Of its PTX: `compute_90a`."""
        return f"compute_{self.number}"

    @property
    def is_general(self) -> bool:
        """Whether its PTX is for all later GPUs."""
        return not self.suffix


def parse_target(word: str) -> Target | None:
    """The target that `sm_90a`, `90a` or `9.0` means; None for other words."""
    match = _WORD.fullmatch(word.strip())
    if match is None:
        return None
    major, minor = match[1] or match[3], match[2] or match[4]
    return Target(int(major), int(minor), match[5].lower())


def choose_targets(
    words: Iterable[str],
    known: Sequence[Target],
    *,
    native: Callable[[], Sequence[str]],
    explain: Explanation = lambda target: None,
) -> tuple[Target, ...]:
    """The distinct targets that some words mean, lowest first.

    Args:
        words: Targets, `native`, `all` or `all-major`.
        known: What this nvcc builds for.
        native: Compute capabilities of the GPUs here, as `9.0`; asked only for `native`.
        explain: What is known of a target that this nvcc does not build for, as a sentence.

    Raises:
        InputError: A word means no target, or one that this nvcc does not build for.
    """
    chosen: set[Target] = set()
    for word in words:
        chosen |= _meant(word, known, native, explain)
    return tuple(sorted(chosen))


def ptx_target(targets: Iterable[Target]) -> Target:
    """The target whose PTX serves later GPUs: the first of the newest generation, as nvcc has it for `all`.

    Raises:
        InputError: All targets have features that later GPUs need not have.
    """
    general = [target for target in targets if target.is_general]
    if not general:
        names = ", ".join(target.ptx_name for target in targets)
        raise InputError(
            f"PTX of {names} is for no later GPU: the letter means features of one GPU or family",
            hint="Add a target without the letter, such as --arch sm_90a,sm_90, or leave --ptx out",
        )
    newest = max(target.major for target in general)
    return min(target for target in general if target.major == newest)


def code_options(targets: Sequence[Target], ptx: Target | None) -> list[str]:
    """The options that build machine code for some targets, and PTX for one or none."""
    if ptx is not None and list(targets) == [ptx]:
        return [f"-arch={ptx.name}"]  # which nvcc documents as both
    options = [f"-gencode=arch={one.ptx_name},code={one.name}" for one in targets]
    return options if ptx is None else [*options, f"-gencode=arch={ptx.ptx_name},code={ptx.ptx_name}"]


def runs_on(targets: Iterable[Target], ptx: Target | None, compute_capability: str) -> bool:
    """Whether the code runs on a GPU, as machine code or from PTX. Jetsons may refuse what this accepts."""
    gpu = parse_target(compute_capability)
    if gpu is None:
        return False
    if ptx is not None and (ptx.major, ptx.minor) <= (gpu.major, gpu.minor):
        return True
    return any(_is_compatible(one, gpu) for one in targets)


def _is_compatible(target: Target, gpu: Target) -> bool:
    if target.suffix == "a":
        return (target.major, target.minor) == (gpu.major, gpu.minor)
    return target.major == gpu.major and target.minor <= gpu.minor


def _meant(
    word: str, known: Sequence[Target], native: Callable[[], Sequence[str]], explain: Explanation
) -> set[Target]:
    general = [target for target in known if target.is_general]
    if word == ALL:
        return set(general)
    if word == ALL_MAJOR:
        return {general[0], *(target for target in general if target.minor == 0)}
    if word == NATIVE:
        return {_known(one, known, explain) for one in native()}
    return {_known(word, known, explain)}


def _known(word: str, known: Sequence[Target], explain: Explanation) -> Target:
    target = parse_target(word)
    if target is not None and target in known:
        return target
    names = ", ".join(one.name for one in known)
    hint = f"It knows {names}; or native, all, all-major"
    if (ptx := _PTX_WORD.fullmatch(word.strip())) is not None:
        raise InputError(
            f"{word} is PTX, which is compiled when the program starts",
            hint=f"--arch sm_{ptx[1]} --ptx has it beside machine code",
        )
    if target is None:
        raise InputError(f"'{word}' is no target of nvcc", hint=hint)
    sentence = explain(target)
    reason = "" if sentence is None else f": {sentence}"
    raise InputError(f"this nvcc does not build for {target.name}{reason}", hint=hint)
