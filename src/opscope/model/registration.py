"""Where an operator's implementations were registered, as the recording process's dispatcher had them."""

from __future__ import annotations

from enum import Enum

import msgspec

__all__ = ["OperatorRegistration", "RegistrationKind"]


class RegistrationKind(str, Enum):
    """How an operator's code came to the dispatcher. A closed set."""

    CUSTOM_OP = "custom_op"
    TRITON_OP = "triton_op"
    LIBRARY = "library"
    CXX = "cxx"

    @property
    def meaning(self) -> str:
        """One phrase for people."""
        return _MEANINGS[self]


_MEANINGS = {
    RegistrationKind.CUSTOM_OP: "torch.library.custom_op",
    RegistrationKind.TRITON_OP: "torch.library.triton_op",
    RegistrationKind.LIBRARY: "Python, through a torch.library.Library",
    RegistrationKind.CXX: "C++, through TORCH_LIBRARY",
}


class OperatorRegistration(msgspec.Struct, frozen=True):
    """One operator that no native_functions.yaml describes, or one of `aten` whose code was replaced.

    Places are `FILE:LINE`; files of PyTorch itself are relative to its repository, those under `build/` are
    generated. For code that was registered in C++ the place is that of the registration, as the compiler was
    told it. For a `Library` it is where the library object was made: its functions are not known.

    Args:
        name: With namespace and overload, e.g. `mylib::scale`, `aten::mul.Tensor`.
        kind: How it was registered.
        schema: As the dispatcher prints it.
        definition: Where the schema was registered; None for operators of `aten`.
        kernels: Dispatch key → place of the code in force; None where the dispatcher names none. Of an `aten`
            operator only the keys whose code is not PyTorch's compiled one.
        python_file: File of the user's Python function.
        python_line: Its first line, decorators included.
        end_line: Its last line.
        overrides: Dispatch key → place of the code that was replaced, None where there was none. Only for
            operators of `aten`.
    """

    name: str
    kind: RegistrationKind
    schema: str | None = None
    definition: str | None = None
    kernels: dict[str, str | None] = {}
    python_file: str | None = None
    python_line: int | None = None
    end_line: int | None = None
    overrides: dict[str, str | None] = {}
