"""What each distinct call of a watched step is given, beyond what a profiler records of it.

Of tensors their alignment, memory that they share and how their values are spread; texts, numbers, members of
lists; of kernels of Triton that the program launches itself the source, the grid and the arguments.

Nothing of the program is kept or drawn. Values on a device are looked at only while no graph is captured and
no other process of a job waits for this one. Importing this module does not import torch.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from opscope.model.sidecar import GivenArgument, GivenCall, GivenTensor, GivenValues
from opscope.workloads.runtime import is_of_job, require_torch

_ALIGNED, _ALIGNED_ON_HOST = 256, 64  # bytes: no kernel asks for more, and no allocator gives less
# Of integers, which are copied to the host: of one tensor, of all; of floats, which are counted in place.
_MOST_BYTES, _MOST_BYTES_OF_ALL, _MOST_COUNTED_BYTES = 8 << 20, 64 << 20, 1 << 30


class GivenCalls:
    """The distinct calls of a step; each is `note`d before it is made."""

    def __init__(self) -> None:
        self._torch = require_torch()
        self._plain = {self._torch.Tensor, self._torch.nn.Parameter}
        self._calls: dict[Any, GivenCall] = {}
        self._counts: Counter[Any] = Counter()
        self._alike: Counter[Any] = Counter()  # calls, by what is no number
        # Room: tensors of all distinct calls.
        self._copied_bytes, self._room = 0, 50_000
        self._sources: dict[int, str | None] = {}

    def __iter__(self) -> Iterator[GivenCall]:
        return (msgspec.structs.replace(one, count=self._counts[key]) for key, one in self._calls.items())

    def note(
        self,
        name: str,
        given: Mapping[str, Any],
        overload: str = "",
        *,
        is_view: bool = False,
        source: str | None = None,
        grid: tuple[int, ...] | None = None,
    ) -> None:
        values = [one for value in given.values() for one in (value if _is_list(value) else (value,))]
        storages = Counter(one.untyped_storage()._cdata for one in values if self._is_plain(one))
        shared = (storage for storage, count in storages.items() if count > 1)
        memory = {storage: number for number, storage in enumerate(shared)}
        arguments = {key: self._argument(one, memory) for key, one in given.items()}
        key = name, overload, grid, tuple(arguments.items())
        self._counts[key] += 1
        if key in self._calls:
            return
        alike = name, overload, grid, tuple(one for one in arguments.values() if type(one) is not str)
        self._alike[alike] += 1
        # Of calls that differ in numbers alone the first eight.
        if self._alike[alike] <= 8 and (room := self._room - len(values)) >= 0:
            self._room = room
            if not is_view:  # which reads no values
                arguments = {of: self._argument(one, memory, is_read=True) for of, one in given.items()}
            self._calls[key] = GivenCall(name, arguments, overload, source=source, grid=grid)

    def note_launch(
        self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Sequence[Any]
    ) -> None:
        """A kernel of Triton's, in a grid that is one number for each dimension."""
        given = {**dict(zip(function.arg_names, args, strict=False)), **kwargs}
        if id(function) not in self._sources:
            self._sources[id(function)] = None
            with suppress(AttributeError, OSError, SyntaxError, TypeError, ValueError):  # of another Triton
                self._sources[id(function)] = _source(function)
        arguments = {key: one for key, one in given.items() if key not in {"grid", "warmup"}}
        source, size = self._sources[id(function)], tuple(map(int, (*grid, 1, 1)[:3]))
        self.note(function.fn.__name__, arguments, source=source, grid=size)

    def _is_plain(self, value: Any) -> bool:
        return type(value) in self._plain and value.layout is self._torch.strided

    def _argument(  # noqa: PLR0911 - a case for each kind
        self, value: Any, memory: Mapping[int, int], *, is_read: bool = False
    ) -> GivenArgument:
        """A tensor (its values too if it `is_read`) or several, else as Python writes it."""
        torch = self._torch
        if isinstance(value, torch.Tensor):
            return self._tensor(value, memory, is_read=is_read)
        if _is_list(value):
            members = [self._argument(one, memory, is_read=is_read) for one in value]
            if any(isinstance(one, GivenTensor) for one in members):
                return tuple(one if isinstance(one, GivenTensor) else None for one in members)
            texts = [one for one in members if isinstance(one, str)]
            return f"[{', '.join(texts)}]" if len(texts) == len(members) else None
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format, torch.device)):
            return str(value)
        if type(value).__name__ == "JITFunction":  # of Triton, that a kernel is to call
            return str(value.fn.__name__)
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            return repr(value)
        # A storage would write every element, each fetched from the device.
        text = repr(value) if type(value).__module__.startswith("triton.language") else ""
        return text.replace("triton.language.", "tl.") if text.startswith("triton.language.") else None

    def _tensor(self, tensor: Any, memory: Mapping[int, int], *, is_read: bool) -> GivenTensor:
        dtype = str(tensor.dtype).removeprefix("torch.")
        # Sizes of ragged tensors are no numbers.
        shape = tuple(size if type(size) is int else -1 for size in tensor.shape)
        if not self._is_plain(tensor) or tensor.is_conj() or tensor.is_neg():
            layout = str(tensor.layout).removeprefix("torch.")
            is_layout = type(tensor) in self._plain and layout != "strided"
            return GivenTensor(shape, dtype, kind=layout if is_layout else type(tensor).__name__)
        number, bits = memory.get(tensor.untyped_storage()._cdata), tensor.data_ptr() & -tensor.data_ptr()
        is_aligned = not 0 < bits < (_ALIGNED if tensor.is_cuda else _ALIGNED_ON_HOST)
        return GivenTensor(
            shape,
            dtype,
            tensor.stride(),
            _ALIGNED if is_aligned else bits,
            number,
            0 if number is None else tensor.storage_offset(),
            values=self._values(tensor.detach()) if is_read else None,
            requires_grad=tensor.requires_grad,
        )

    def _values(self, tensor: Any) -> GivenValues | None:
        torch = self._torch
        is_free = tensor.is_cuda and not (is_of_job() or torch.cuda.is_current_stream_capturing())
        if not (tensor.numel() and (is_free or tensor.device.type == "cpu")):
            return None
        with torch.no_grad():
            return self._share_of_zeros(tensor) if tensor.is_floating_point() else self._integers(tensor)

    def _share_of_zeros(self, tensor: Any) -> GivenValues | None:
        torch = self._torch
        if tensor.element_size() == 1 or tensor.nbytes > _MOST_COUNTED_BYTES or not tensor.dim():
            return None
        # A sum by rows, which needs no other tensor of this size.
        kind = torch.float64 if tensor.dtype is torch.float64 else torch.float32
        counts = torch.linalg.vector_norm(tensor, 0, dim=-1, dtype=kind)
        filled, empty = torch.stack([counts.double().sum(), (counts == 0).double().sum()]).tolist()
        if filled == tensor.numel():
            return GivenValues()
        return GivenValues(round(1 - filled / tensor.numel(), 4), round(empty / counts.numel(), 4))

    def _integers(self, tensor: Any) -> GivenValues | None:
        if tensor.is_complex() or tensor.nbytes > min(_MOST_BYTES, _MOST_BYTES_OF_ALL - self._copied_bytes):
            return None
        self._copied_bytes += tensor.nbytes
        array = tensor.cpu().numpy().ravel()
        zeros = round(float(np.mean(array == 0)), 4)
        if array.dtype == np.bool_:
            return GivenValues(zeros)
        # Every element is kept of short tensors alone.
        return GivenValues(
            zeros,
            negative=round(float(np.mean(array < 0)), 4),
            low=int(array.min()),
            high=int(array.max()),
            distinct=len(np.unique(array)),
            is_sorted=bool(np.all(array[1:] >= array[:-1])),
            every=tuple(array.tolist()) if len(array) <= 512 else None,
        )


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _source(function: Any) -> str | None:
    """A kernel of Triton's with what it calls and reads of its module; None where that cannot be written."""
    parts: dict[str, str | None] = dict.fromkeys(function.fn.__code__.co_freevars)

    def add(one: Any) -> None:
        nodes = list(ast.walk(ast.parse(one.src)))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        names -= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        names -= {node.arg for node in nodes if isinstance(node, ast.arg)}
        for name in sorted(names & one.fn.__globals__.keys() - parts.keys()):
            value = one.fn.__globals__[name]
            if isinstance(value, ModuleType):
                parts[name] = f"import {value.__name__} as {name}"
            elif type(value).__name__ == "JITFunction":
                parts[name] = ""  # it may call itself
                add(value)
                del parts[name]  # what it needs stands before it
                parts[name] = f"\n\n@triton.jit\n{value.src.strip()}\n"
            elif type(value).__name__ == "constexpr":
                parts[name] = f"{name} = tl.constexpr({value.value!r})"
            elif isinstance(value, (bool, int, float, str)):
                parts[name] = f"{name}: tl.constexpr = {value!r}"  # else a kernel must not read it
            elif str(getattr(value, "__module__", "")).startswith("triton."):
                parts[name] = f"from {value.__module__} import {value.__name__} as {name}"
            else:
                parts[name] = None

    add(function)
    known = [one for one in parts.values() if one is not None]
    known.sort(key=lambda one: not one.startswith(("import ", "from ")))
    own = f"\n\n@triton.jit\n{function.src.strip()}\n"
    return "\n".join([*known, own]) if len(known) == len(parts) else None
