"""Command lines of nvcc: what is made, for which targets, with which options of the user's.

Source: nvcc 13.0 documentation, "Command Options" and "GPU Compilation".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opscope.errors import DependencyError, InputError
from opscope.hardware.architectures import Target, parse_target, runs_binary, runs_ptx
from opscope.hardware.occupancy import BLOCK_SIZES
from opscope.text_enum import TextEnum
from opscope.toolchain.programs import run_program


class BuildProduct(TextEnum):
    PROGRAM = "program"
    OBJECT = "object"
    SHARED = "shared"
    FATBIN = "fatbin"
    CUBIN = "cubin"
    NOTHING = "nothing"  # the kernels are compiled, and looked at


# The options that make it, and the suffix of its name.
_PRODUCTS: dict[BuildProduct, tuple[tuple[str, ...], str]] = {
    BuildProduct.PROGRAM: ((), ""),
    BuildProduct.OBJECT: (("-c",), ".o"),
    BuildProduct.SHARED: (("-shared", "-Xcompiler=-fPIC"), ".so"),
    BuildProduct.FATBIN: (("-fatbin",), ".fatbin"),
    BuildProduct.CUBIN: (("-cubin",), ".cubin"),
    BuildProduct.NOTHING: (("-fatbin",), ".fatbin"),
}
# Options of nvcc that would contradict what is done here.
_OWN = re.compile(
    r"-o|-c|--?(?:arch|gpu-architecture|code|gpu-code|gencode|generate-code|output-file|odir|output-directory|"
    r"compile|shared|fatbin|cubin|ptx|lib|dlink|device-link|link|device-c|device-w|dc|dw|run|keep|keep-dir|"
    r"save-temps|dryrun|E|M|MM|preprocess)"
)


@dataclass(frozen=True)
class Request:
    """What to compile, to which file, for which machine code; `ptx` is embedded for later GPUs."""

    source: Path
    output: Path
    product: BuildProduct
    targets: tuple[Target, ...]
    ptx: Target | None = None
    options: tuple[str, ...] = ()
    # What occupancy assumes: threads of blocks, and shared memory that launches ask for, for each block.
    block_sizes: tuple[int, ...] = BLOCK_SIZES
    dynamic_shared_bytes: int = 0

    def command(self, executable: str, output: Path, gathering: Sequence[str] = ()) -> list[str]:
        """The command of nvcc that does it, into another file, gathering more that is said and kept."""
        code = code_options(self.targets, self.ptx)
        made = [*_PRODUCTS[self.product][0], *code, *self.options, *gathering]
        return [executable, *made, "-o", str(output), str(self.source)]


def default_name(source: Path, product: BuildProduct) -> str:
    return source.stem + _PRODUCTS[product][1]


def refuse_options(options: Sequence[str]) -> None:
    """Raise an InputError if an option contradicts what is done here."""
    for name in (option.partition("=")[0] for option in options):
        if _OWN.fullmatch(name):
            raise InputError(
                f"--nvcc-option does not take {name}",
                hint="--arch chooses the targets, --emit what is made, -o names it, --show ptx prints PTX, "
                "--run runs the program; run nvcc itself for the rest",
            )


def command_text(command: Sequence[str]) -> str:
    """The command as a person writes it in a shell: by the program's name."""
    return shlex.join([Path(command[0]).name, *command[1:]]).replace("-gencode=", "-gencode ")


NATIVE, ALL, ALL_MAJOR = "native", "all", "all-major"
_PTX_WORD = re.compile(r"compute_(\d+[af]?)", re.IGNORECASE)
Explanation = Callable[["Target"], "str | None"]


def choose_targets(
    words: Iterable[str],
    known: Sequence[Target],
    *,
    native: Callable[[], Sequence[str]],
    explain: Explanation = lambda target: None,
) -> tuple[Target, ...]:
    """The distinct targets that some words mean, lowest first; `native` is asked only for that word."""
    general = [target for target in known if target.is_general]
    chosen: set[Target] = set()
    for word in words:
        if word == ALL:
            chosen.update(general)
        elif word == ALL_MAJOR:
            chosen.update((general[0], *(target for target in general if target.minor == 0)))
        else:
            chosen.update(_known(one, known, explain) for one in (native() if word == NATIVE else (word,)))
    return tuple(sorted(chosen))


def ptx_target(targets: Iterable[Target]) -> Target:
    """The target whose PTX serves later GPUs: the first of the newest generation, as of nvcc's `all`."""
    general = [target for target in targets if target.is_general]
    if not general:
        names = ", ".join(target.ptx_name for target in targets)
        raise InputError(
            f"PTX of {names} is for no later GPU: the letter means features of one GPU or family",
            hint="Add a target without the letter, such as --arch sm_90a,sm_90, or leave ptx out",
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
    """Whether the code runs on a GPU, as machine code or from PTX."""
    gpu = parse_target(compute_capability)
    if gpu is None:
        return False
    return (ptx is not None and runs_ptx(ptx, gpu)) or any(runs_binary(one, gpu) for one in targets)


def _known(word: str, known: Sequence[Target], explain: Explanation) -> Target:
    target = parse_target(word)
    if target is not None and target in known:
        return target
    names = ", ".join(one.name for one in known)
    hint = f"It knows {names}; or native, all, all-major"
    if (ptx := _PTX_WORD.fullmatch(word.strip())) is not None:
        raise InputError(
            f"{word} is PTX, which is compiled when the program starts",
            hint=f"--arch sm_{ptx[1]},ptx has it beside machine code",
        )
    if target is None:
        raise InputError(f"'{word}' is not a target of nvcc", hint=hint)
    sentence = explain(target)
    reason = "" if sentence is None else f": {sentence}"
    raise InputError(f"this nvcc does not build for {target.name}{reason}", hint=hint)


_RELEASE = re.compile(r"release (\d+\.\d+)(?:, V([\d.]+))?")
_TARGET = re.compile(r"\bsm_\d+[af]?\b")
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Nvcc:
    """A compiler and all it builds for, lowest first."""

    path: str
    release: str  # of the CUDA toolkit, `13.0`
    version: str | None  # `13.0.88`
    targets: tuple[Target, ...]


def read_nvcc(path: str) -> Nvcc:
    release = _RELEASE.search(_answer(path, "--version"))
    # The list has no specific targets and is missing before 11.1; the help has them all.
    listed = _TARGET.findall(_answer(path, "--list-gpu-code") + _answer(path, "--help"))
    targets = {target for word in listed if (target := parse_target(word)) is not None}
    if release is None or not targets:
        raise DependencyError(
            f"{path} does not answer as nvcc does",
            hint="Is it the compiler of a CUDA toolkit, and is the toolkit complete?",
        )
    return Nvcc(path, release[1], release[2], tuple(sorted(targets)))


def _answer(path: str, option: str) -> str:
    """What it prints; empty if it does not know the option."""
    done = run_program([path, option], timeout_s=_TIMEOUT_S)
    if done.failure is not None:
        raise DependencyError(
            f"nvcc {done.failure}", source=path, hint="Install the CUDA toolkit again, or set CUDA_HOME"
        )
    return done.out if done.succeeded else ""
