"""Command lines of nvcc: what is made, for which targets, with which options of the user's.

Source: nvcc 13.0 documentation, "Command Options".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from opscope.errors import InputError
from opscope.text_enum import TextEnum

__all__ = ["Product", "command_text", "default_name", "nvcc_command", "refuse_options"]


class Product(TextEnum):
    """What a compilation makes."""

    PROGRAM = "program"
    OBJECT = "object"
    SHARED = "shared"
    FATBIN = "fatbin"
    CUBIN = "cubin"
    NOTHING = "nothing"  # the kernels are compiled, and looked at


_OPTIONS: dict[Product, tuple[str, ...]] = {
    Product.PROGRAM: (),
    Product.OBJECT: ("-c",),
    Product.SHARED: ("-shared", "-Xcompiler=-fPIC"),
    Product.FATBIN: ("-fatbin",),
    Product.CUBIN: ("-cubin",),
    Product.NOTHING: ("-fatbin",),
}
_SUFFIXES = {
    Product.PROGRAM: "",
    Product.OBJECT: ".o",
    Product.SHARED: ".so",
    Product.FATBIN: ".fatbin",
    Product.CUBIN: ".cubin",
    Product.NOTHING: ".fatbin",
}
_EMIT = "--emit program, object, shared, fatbin, cubin or nothing says what is made"
# Options of nvcc that would contradict what is done here, and what is meant for them.
_OWN: tuple[tuple[str, str], ...] = (
    (r"--?(?:arch|gpu-architecture|code|gpu-code|gencode|generate-code)", "--arch chooses the targets"),
    (r"-o|--?output-file|--?odir|--?output-directory", "-o names the output"),
    (r"-c|--?(?:compile|shared|fatbin|cubin|lib|dlink|device-link|link|device-c|device-w|dc|dw)", _EMIT),
    (r"--?ptx", "--ptx embeds PTX, --show-ptx prints it"),
    (r"--?run", "--run runs the program"),
    (r"--?(?:keep|keep-dir|save-temps|dryrun|E|M|MM|preprocess)", "Run nvcc itself for that"),
)


def nvcc_command(
    executable: str,
    source: Path,
    output: Path,
    *,
    product: Product,
    code: Sequence[str],
    options: Sequence[str] = (),
) -> list[str]:
    """The command that compiles a file.

    Args:
        executable: nvcc.
        source: The file.
        output: To be written.
        product: What is made.
        code: Options that choose targets.
        options: Further ones.
    """
    return [executable, *_OPTIONS[product], *code, *options, "-o", str(output), str(source)]


def default_name(source: Path, product: Product) -> str:
    """The name of what is made of a file."""
    return source.stem + _SUFFIXES[product]


def refuse_options(options: Sequence[str]) -> None:
    """Return if no option contradicts what is done here.

    Raises:
        InputError: One does; the hint names the option that is meant.
    """
    for option in options:
        name = option.partition("=")[0]
        for pattern, hint in _OWN:
            if re.fullmatch(pattern, name):
                raise InputError(f"--nvcc-option does not take {name}", hint=hint)


def command_text(command: Sequence[str]) -> str:
    """The command as a person writes it in a shell: by the program's name."""
    return shlex.join([Path(command[0]).name, *command[1:]]).replace("-gencode=", "-gencode ")
