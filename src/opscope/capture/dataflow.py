"""What needs what in two steps of a program: work that gives the same again, rounds that need not wait.

For two steps, before any is recorded, a dispatch mode sees each operator. Values are numbered: two tensors
have one number only if they are sure to be equal, because they came out of the same operator with the same
arguments, or, on the host, have the same bytes. What cannot be followed (random numbers, operators whose
schema is not to be trusted, memory that nobody has written) gets a number of its own, so nothing is called
the same that may differ. What writes to memory of a device without an operator, a kernel of one's own, is
not seen here: who reads a recording looks for that.

No tensor is kept alive. Of those on a device what `torch.tensor` has just written there is read, and what
`given_calls` looks at.
Importing this module does not import torch.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import hashlib
import importlib
import itertools
import linecache
import os
import re
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from operator import contains
from typing import Any, NamedTuple

import msgspec

from opscope.capture.given_calls import GivenCalls
from opscope.capture.program_loops import CallSite, Line, LoopRun, ProgramFrames
from opscope.model.queries import grouped
from opscope.model.sidecar import (
    PaddedInput,
    ProgramLine,
    ProgramPart,
    PythonWork,
    RecordedDataflow,
    RecordedRounds,
    RepeatedSince,
    RepeatedWork,
    ThreadOperators,
    UnusedWork,
)
from opscope.workloads.runtime import require_torch

COMPILED = "the program is compiled"
_MOST_OPERATORS = 50_000  # of a step
# Of tensors on the host: of one, since data are large and differ in any case; of all in a step.
_LARGEST_HASHED_BYTES, _MOST_HASHED_BYTES = 16 << 20, 256 << 20
_LARGEST_LIFTED_BYTES, _LEAST_TELLING_BYTES = 1 << 16, 64  # so many are not alike by chance
_NUMBERS = frozenset({int, float})
# Operators of a round, views aside, but where there are many; rounds of a loop.
_LEAST_OPERATORS, _MANY_ROUNDS, _LEAST_ROUNDS = 4, 16, 3
_ADDING = re.compile(r"aten::(add|sub|maximum|minimum|logaddexp|cat|stack|index_(put|add|copy)|scatter\w*)_?")
_LIKE = 0.9  # of what is called below a line is the same again; the rest is for free
_PART, _LEAST_PART = 0.25, 8  # of a line's operators, at least, where less is
_SELECTING = frozenset({"aten::index", "aten::nonzero", "aten::where", "aten::masked_select"})
_UNWRITTEN = ("aten::empty", "aten::new_empty")
_OVERWRITING = frozenset({"aten::copy_", "aten::fill_", "aten::zero_"})
_COPIES = frozenset({"aten::_to_copy", "aten::copy_"})
_HOST = "cpu"  # whose memory Python may read at any time
# Written by norms of batches, whose schema does not say so.
_RUNNING = frozenset({"running_mean", "running_var"})


class Padding(NamedTuple):
    """Of a tensor whose rows are filled up to one length, each at its end or each at its beginning."""

    rows: int
    columns: int
    longest: int  # row, without what fills it up
    mean: float  # length of a row
    filler: float
    is_left: bool


class OperatorSchema(NamedTuple):
    """What the schema of an operator says."""

    name: str
    parameters: tuple[str, ...]
    writes: frozenset[str]  # parameters that it writes to
    overwrites: frozenset[str]  # those that it does not read
    is_opaque: bool  # its results are never known to be the same
    is_random: bool  # if it drops anything


class SeenOperator(NamedTuple):
    """One operator of the second step."""

    name: str
    thread_id: int
    key: int  # of what it works out: the same for the same
    kin: int  # of what a comparison would work out with other numbers; else the same
    site: CallSite
    needs: frozenset[int]  # operators of this step whose results it reads
    weights: frozenset[int]  # parameters that it reads
    written: frozenset[int]  # memory that it writes to
    made: frozenset[int]  # memory that it makes
    sizes: tuple[tuple[int, ...], ...]  # of the tensors it reads
    numbers: tuple[float, ...]  # its other arguments
    is_again: bool  # the step before did the same
    is_view: bool
    is_of_weights: bool  # reads nothing but parameters, and what was made of them
    is_on_host: bool  # its result is, where Python may read it
    is_read: bool  # hands what it is given to Python, or to the host
    is_flag: bool  # and that is a truth value
    is_differentiated: bool  # the backward pass comes to it
    has_new: bool  # reads or draws what neither an operator has made nor a step before has read
    reads_before: bool  # what the step before has made
    is_of_batch: bool  # its results depend on what else is in the batch
    has_effect: bool  # beyond its results, or these cannot be followed
    padding: Padding | None  # of what it copies from the host
    python_s: float  # that Python ran before it, since the operator before


class _Storage:
    """Memory behind tensors: the number of what is in it, and who has written that in this step."""

    __slots__ = (
        "is_made", "is_new", "is_of_weights", "is_read", "reference", "size", "value", "writers",
        "writers_before",
    )  # fmt: skip

    def __init__(self, reference: Any, size: int, value: int, *, is_of_weights: bool) -> None:
        self.reference, self.size, self.value = reference, size, value
        self.is_made, self.is_new, self.is_of_weights = False, True, is_of_weights
        self.is_read = False  # by an operator that does not write to it as well
        self.writers = self.writers_before = frozenset[int]()  # of this step and of the one before

    @property
    def is_there(self) -> bool:
        return self.reference is None or not self.reference.expired()


class DataflowWatch:
    """Sees the operators of two steps of a program: `start`, `next_step` between them, then `stop`.

    Nothing of it may end the program: what fails in here only ends the watching.
    """

    def __init__(self) -> None:
        self.why_not: str | None = None  # there is no result
        self._modes = importlib.import_module("torch.utils._python_dispatch")
        self._torch = require_torch()
        self._plain = {self._torch.Tensor, self._torch.nn.Parameter}
        self._parameters: Any = weakref.WeakSet()
        self._weak = importlib.import_module("torch.multiprocessing.reductions").StorageWeakRef
        self._mode: Any = None
        self._is_on = False
        self._thread_id = threading.get_ident()
        self._kinds: dict[Any, OperatorSchema] = {}
        self._numbers: dict[Hashable, int] = {}
        self._unknown = itertools.count(-1, -1)
        self._storages: dict[int, _Storage] = {}
        self._steps: list[list[SeenOperator]] = []
        self._first_number = 0  # of this step
        self._read_later: set[int] = set()  # operators of the first step whose results the second one reads
        self._hashed_bytes, self._spent_s = 0, 0.0
        self._contents: dict[bytes, int] = {}  # of host memory that this step has read: whose was it first
        self._left_s = 0.0  # when the last operator returned, of any thread
        self._python_s = 0.0  # from then until the one that runs was called
        self._frames: dict[int, ProgramFrames] = defaultdict(ProgramFrames)
        self._calls = GivenCalls()
        self._triton: Any = None  # the class of kernels, its `run` and ours

    def start(self) -> None:
        """Watch from here on, unless something of the program's is in the way."""
        if sys.gettrace() is not None:
            self.why_not = "a debugger or a coverage tool traces the program"
        elif self._modes._get_current_dispatch_mode() is not None:
            self.why_not = "the program has a dispatch mode of its own"
        elif _has_compiled():
            self.why_not = COMPILED
        else:
            self._mode, self._is_on, self._steps = _mode_class()(), True, [[]]
            self._mode.seen = self._seen
            os.register_at_fork(after_in_child=self._forked)
            self._ctc_loss, self._torch.ctc_loss = self._torch.ctc_loss, _of_lists(self._torch.ctc_loss)
            kernels = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
            if kernels is not None:
                self._triton = kernels, kernels.run, self._launching(kernels.run)
                kernels.run = self._triton[2]
            self._mode.__enter__()

    def next_step(self) -> None:
        """The step is over and the next one begins."""
        self._steps.append([])
        for frames in self._frames.values():
            frames.step += 1
        self._first_number, self._hashed_bytes = len(self._numbers), 0
        self._contents.clear()
        self._left_s = time.perf_counter()
        for storage in self._storages.values():
            storage.writers_before, storage.writers = storage.writers, frozenset()
            storage.is_new = storage.is_made = False

    def stop(self) -> RecordedDataflow | None:
        """Watch no longer; what was seen in the second step, or None (`why_not` says why)."""
        mode, self._mode, self._is_on = self._mode, None, False
        if mode is None:
            return None
        self._leave(mode)
        steps, self._steps = self._steps, []
        unread = self._guarded(self._unread_gradients) or frozenset()
        gone = frozenset(id(one) for one in self._storages.values() if not one.is_there)
        kept = self._read_later.union(
            *(one.writers_before for one in self._storages.values() if one.is_there and id(one) not in unread)
        )
        calls, self._calls = msgspec.json.encode(list(self._calls)).decode(), GivenCalls()
        # What is called at forks keeps this object for as long as the process lives.
        for known in (self._storages, self._numbers, self._kinds, self._frames):
            known.clear()
        if _has_compiled():
            self.why_not = COMPILED
        if self.why_not is None and len(steps) < 2:
            self.why_not = "the program had no second step"
        if self.why_not is not None:
            return None
        found = self._guarded(summarized, steps[1], (steps[0], kept, unread, gone))
        return None if found is None else msgspec.structs.replace(found, calls=calls)

    def _unread_gradients(self) -> frozenset[int]:
        """Memory of gradients that nothing but their own sums read, in steps in which an optimizer ran."""
        if not all(any(one.site.is_of_optimizer for one in step) for step in self._steps):
            return frozenset()
        found = [self._storage(one.grad) for one in self._parameters if one.grad is not None]
        return frozenset(id(one) for one in found if one.reference is not None and not one.is_read)

    def _forked(self) -> None:
        """In a child, a worker that loads data say, nothing is watched."""
        self.why_not = "this is a child"
        self.stop()

    def _leave(self, mode: Any) -> None:
        """Take the mode off the stack of this thread, if it must be from below others."""
        self._torch.ctc_loss = self._ctc_loss
        if self._triton is not None:
            kernels, run, ours = self._triton
            kernels.run = run if kernels.run is ours else kernels.run  # else another has wrapped it since
        if threading.get_ident() != self._thread_id:
            self.why_not = "the program makes its steps in several threads"
            return
        modes: Any = self._modes
        above = []
        while (top := modes._get_current_dispatch_mode()) is not None and top is not mode:
            above.append(modes._pop_mode())
        if top is not None:
            mode.__exit__(None, None, None)
        for one in reversed(above):
            modes._push_mode(one)

    def _seen(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Ranges are no operators in a recording; and operators of operators have no schema.
        if not self._is_on or func.namespace == "profiler" or not hasattr(func, "_schema"):
            return func(*args, **kwargs)
        begun = time.perf_counter()
        self._python_s = begun - self._left_s
        given = self._guarded(self._given, func, args, kwargs)
        self._spent_s += time.perf_counter() - begun
        result = func(*args, **kwargs)
        begun = time.perf_counter()
        if given is not None:
            self._guarded(self._returned, *given, result)
        self._left_s = time.perf_counter()
        self._spent_s += self._left_s - begun
        # More seconds watching must not add.
        if self._spent_s > 20.0 or len(self._steps[-1]) > _MOST_OPERATORS:
            self._is_on, self.why_not = False, "a step has too many operators to watch each"
        return result

    def _guarded(self, note: Callable[..., Any], *args: Any) -> Any:
        try:
            return note(*args)
        except Exception as error:  # noqa: BLE001 - whatever a tensor of the program's own kind raises
            self._is_on, self.why_not = False, f"{type(error).__name__}: {error}"
            return None

    def _given(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """An operator's kind, arguments by name, and the number of what it works out."""
        kind = self._kinds.get(func) or self._kinds.setdefault(func, _kind_of(func))
        given = {**dict(zip(kind.parameters, args, strict=False)), **kwargs}
        # What `torch.tensor` has made on a GPU came there from a list that nobody saw.
        if (
            kind.name == "aten::lift_fresh"
            and args[0].is_cuda
            and args[0].nbytes <= _LARGEST_LIFTED_BYTES
            and not self._torch.cuda.is_current_stream_capturing()
        ):
            self._storage(args[0]).value = self._number(("lifted", self._value(args[0].cpu())))
        if len(self._steps) > 1:
            every = {name: given.get(name) for name in kind.parameters}
            overload = func._overloadname.replace("default", "")
            self._calls.note(kind.name, every, overload, is_view=getattr(func, "is_view", False))
        is_random = kind.is_random and not (given.get("dropout_p", 1.0) == 0.0 or given.get("train") is False)
        parts: list[Hashable] = [func, self._torch.is_grad_enabled()]
        for name, one in _flat(given):
            if not isinstance(one, self._torch.Tensor):
                parts.append(one if isinstance(one, Hashable) else next(self._unknown))
            else:
                parts.append(_geometry(one) if name in kind.overwrites else self._value(one))
        key = next(self._unknown) if is_random or kind.is_opaque else self._number(tuple(parts))
        # Of what is compared with a number, the same for all of these.
        others = (one for one in parts if type(one) not in _NUMBERS)
        keys = key, self._number((*others, "aside")) if kind.name == "aten::eq" else key
        return kind, given, keys, is_random

    def _launching(self, run: Any) -> Any:
        """Triton's launch of a kernel, which notes what it is given in the second step."""

        def note(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> None:
            if self._is_on and len(self._steps) > 1 and not kwargs.get("warmup"):
                self._is_on = False  # what is asked of tensors is none of the program's operators
                self._guarded(self._calls.note_launch, function, args, kwargs, grid)
                self._is_on = self.why_not is None

        @functools.wraps(run)
        def launch(function: Any, *args: Any, **kwargs: Any) -> Any:
            grid: Any = kwargs.get("grid")

            def chosen(meta: Any) -> Any:  # as Triton asks for it
                found = grid(meta)
                note(function, args, kwargs, found)
                return found

            if callable(grid):
                return run(function, *args, **{**kwargs, "grid": chosen})
            if grid is not None:
                note(function, args, kwargs, grid)
            return run(function, *args, **kwargs)

        return launch

    def _returned(
        self, kind: OperatorSchema, given: dict[str, Any], keys: tuple[int, int], is_random: bool, result: Any
    ) -> None:
        """Note an operator that has run, and what it has made of the memory it wrote to."""
        step, tensor_type, (key, kin) = self._steps[-1], self._torch.Tensor, keys
        tensors = [
            (name, one, self._storage(one)) for name, one in _flat(given) if isinstance(one, tensor_type)
        ]
        read = [(one, storage) for name, one, storage in tensors if name not in kind.overwrites]
        is_evaluated = given.get("training") is False  # a norm that leaves its running statistics alone
        written = [
            (name, one, storage)
            for name, one, storage in tensors
            if name in kind.writes and not (is_evaluated and name in _RUNNING)
        ]
        results = [one for _, one in _flat({"": result}) if isinstance(one, tensor_type)]
        made = [self._storage(one) for one in results]
        is_lifted = kind.name == "aten::lift_fresh" and results[0].is_cuda  # that copied it there
        known = set[int]() if is_lifted else {id(storage) for _, _, storage in tensors}
        is_view = bool(made) and not written and known.issuperset(map(id, made))
        is_of_weights = bool(read) and all(storage.is_of_weights for _, storage in read)
        is_number = kind.name == "aten::_local_scalar_dense"
        # Attention keeps the state of random numbers there beside its result.
        is_on_host = is_number or (bool(results) and results[0].device.type == _HOST)
        is_read = is_number or (is_on_host and any(one.device.type != _HOST for one, _ in read))
        changed = frozenset(id(storage) for _, _, storage in written)
        self._read_later.update(
            *(storage.writers_before for _, storage in read if id(storage) not in changed)
        )
        step.append(
            SeenOperator(
                kind.name,
                threading.get_native_id(),
                key,
                kin,
                self._frames[threading.get_ident()].site(sys._getframe(), kind.name),
                frozenset().union(*(storage.writers for _, storage in read)),
                frozenset(id(storage) for one, storage in read if isinstance(one, self._torch.nn.Parameter)),
                changed,
                frozenset(map(id, made)) - known,
                tuple(tuple(one.shape) for one, _ in read),
                tuple(one for _, one in _flat(given) if type(one) in _NUMBERS),
                is_again=0 <= key < self._first_number,
                is_view=is_view,
                is_of_weights=is_of_weights,
                is_on_host=is_on_host,
                is_read=is_read,
                is_flag=is_number and read[0][0].dtype is self._torch.bool,
                is_differentiated=self._torch.is_grad_enabled() and any(one.requires_grad for one, _ in read),
                has_new=any(storage.is_new for _, storage in read) if read else is_random,
                reads_before=any(one.writers_before and not one.is_of_weights for _, one in read),
                is_of_batch="batch_norm" in kind.name and not is_evaluated,
                has_effect=kind.is_opaque
                or is_on_host
                or not made
                or any(not storage.is_made for _, _, storage in written)
                or any(storage.reference is None for storage in made),
                padding=self._padding(read[0][0])
                if kind.name in _COPIES and not is_on_host and read
                else None,
                python_s=self._python_s,
            )
        )
        for _, storage in () if is_view else read:  # each tensor made from numpy is viewed first
            storage.is_new = False
            storage.is_read |= id(storage) not in changed
        place = frozenset({len(step) - 1})
        for name, one, storage in written:
            is_whole = one.numel() * one.element_size() == storage.size and name in kind.overwrites
            storage.writers = place if is_whole else storage.writers | place
            if is_whole:
                storage.writers_before = frozenset()
            before = () if is_whole else (storage.value, *_geometry(one))
            storage.value = self._number(("written", key, name, *before))
        for number, storage in enumerate(made):
            if id(storage) not in known:
                storage.value, storage.is_new = self._number(("made", key, number)), False
                storage.is_made = True
                storage.writers, storage.is_of_weights = place, is_of_weights

    def _padding(self, copied: Any) -> Padding | None:
        """How a tensor on the host is filled up, if with one value that its rows hold nowhere else."""
        if self._storage(copied).reference is None or copied.device.type != "cpu":
            return None  # of a kind of its own
        is_counted = copied.dtype in {self._torch.bool, self._torch.int64, self._torch.int32}
        # A tensor with fewer columns is no table of rows that are filled up.
        is_table = copied.dim() in {2, 3} and copied.shape[1] >= 16
        if not (is_table and (is_counted or copied.is_floating_point())):
            return None
        if not 0 < copied.numel() * copied.element_size() <= _LARGEST_HASHED_BYTES:
            return None
        rows, columns = copied.shape[:2]
        for is_left in (False, True):
            table = copied.flip(1) if is_left else copied
            filler = table[:, -1].double().flatten().mode().values
            empty = (table == filler).reshape(rows, columns, -1).all(2)
            lengths = columns - empty.sum(1)
            least, most, mean = int(lengths.min()), int(lengths.max()), float(lengths.double().mean())
            # Each row one longer than the one before: a mask of who may see whom.
            is_triangle = rows > 2 and bool((lengths.diff().abs() == 1).all())
            is_at_end = bool((empty[:, 1:] >= empty[:, :-1]).all())
            # All of one length: what is written cell by cell, and read whole each time.
            if is_at_end and 0 < least < most and mean <= columns - 1 and not is_triangle:
                return Padding(rows, columns, most, mean, float(filler), is_left)
        return None

    def _number(self, parts: Hashable) -> int:
        return self._numbers.setdefault(parts, len(self._numbers))

    def _storage(self, tensor: Any) -> _Storage:
        """The memory of a tensor; of kinds that have none of their own, a new one each time."""
        if type(tensor) not in self._plain or tensor.layout is not self._torch.strided:
            return _Storage(None, 0, next(self._unknown), is_of_weights=False)
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None:
            if isinstance(tensor, self._torch.nn.Parameter):
                self._parameters.add(tensor)
            # As long as there is a weak reference, no other memory gets this address.
            known = self._storages[storage._cdata] = _Storage(
                self._weak(storage),
                storage.nbytes(),
                next(self._unknown),
                is_of_weights=isinstance(tensor, self._torch.nn.Parameter),
            )
        return known

    def _value(self, tensor: Any) -> Hashable:
        """What stands for a tensor's value: who made it; on the host, where anyone may write, its bytes."""
        storage, geometry = self._storage(tensor), _geometry(tensor)
        if tensor.device.type != _HOST or storage.reference is None:
            return storage.value, geometry
        source = tensor if tensor.is_contiguous() else tensor.untyped_storage()
        size = tensor.numel() * tensor.element_size() if source is tensor else storage.size
        if size > _LARGEST_HASHED_BYTES or self._hashed_bytes + size > _MOST_HASHED_BYTES:
            return next(self._unknown)
        self._hashed_bytes += size
        content = (ctypes.c_char * size).from_address(source.data_ptr()) if size else b""
        digest = hashlib.blake2b(content, digest_size=16).digest()
        if size >= _LEAST_TELLING_BYTES:
            storage.is_new &= self._contents.setdefault(digest, id(storage)) == id(storage)
        return digest, geometry


def _geometry(tensor: Any) -> tuple[Hashable, ...]:
    if str(tensor.layout) != "torch.strided":
        return (tensor.dtype,)
    bits = tensor.is_conj(), tensor.is_neg()
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), bits


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        for one in value if isinstance(value, (list, tuple)) else (value,):
            yield name, one


def _kind_of(func: Any) -> OperatorSchema:
    schema = func._schema
    name, tags = schema.name, {tag.name for tag in func.tags}
    parameters = schema.arguments
    writes = {one.name for one in parameters if one.alias_info is not None and one.alias_info.is_write}
    overwrites = {one.name for one in parameters if one.is_out}
    if name in _OVERWRITING:
        overwrites |= writes
    is_of_torch = name.startswith("aten::")
    if not is_of_torch and "c10d" in name:
        writes = {one.name for one in parameters}
    writes |= {one.name for one in parameters if one.name in _RUNNING}
    return OperatorSchema(
        name,
        tuple(one.name for one in parameters),
        frozenset(writes),
        frozenset(overwrites),
        is_opaque=not is_of_torch or name.startswith(_UNWRITTEN),
        is_random="nondeterministic_seeded" in tags,
    )


@functools.lru_cache(maxsize=1)
def _mode_class() -> Any:
    base: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Watching(base):  # type: ignore[misc]
        seen: Callable[..., Any]
        supports_higher_order_operators = True  # else these fail inside

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True  # else the compiler passes over what it meets inside

    def dispatch(self: Any, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.seen(func, args, kwargs or {})

    # Set afterwards: a method of the class's body is wrapped by torch's compiler, which is imported for that.
    Watching.__torch_dispatch__ = dispatch
    return Watching


def _of_lists(ctc_loss: Any) -> Any:
    """The loss with lengths as lists: beside a mode kernels get tensors on the host, and refuse them."""

    @functools.wraps(ctc_loss)
    def call(
        log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *args: Any, **kwargs: Any
    ) -> Any:
        lengths = (
            one.flatten().tolist() if hasattr(one, "flatten") else one
            for one in (input_lengths, target_lengths)
        )
        return ctc_loss(log_probs, targets, *lengths, *args, **kwargs)

    return call


def has_device() -> bool:
    """Whether the program uses a GPU: nothing is advised where it does not."""
    return bool(require_torch().cuda.is_initialized())


def _has_compiled() -> bool:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["stats"]["unique_graphs"])


def summarized(
    operators: Sequence[SeenOperator],
    before: tuple[Sequence[SeenOperator], Collection[int], Set[int], Set[int]] = ((), (), set(), set()),
) -> RecordedDataflow:
    """What is worth a word of a step: work done before or for nothing, rounds that need not wait.

    `before` is the step before, its operators whose results were read, or were there, after it, memory of
    gradients that nobody reads, and memory that was freed.
    """
    threads = _by_thread(operators)
    number_of = {place: number for number, place in enumerate(itertools.chain(*threads.values()))}
    sequences = []
    for thread_id, places in threads.items():
        names = [operators[place].name for place in places]
        ids = {name: str(number) for number, name in enumerate(dict.fromkeys(names))}
        sequences.append(ThreadOperators(thread_id, tuple(ids), " ".join(ids[name] for name in names)))

    def at(
        line: Line | None, places: Iterable[int], is_whole: bool = True
    ) -> tuple[str | None, Any, str | None]:
        stretches = _stretches(number_of[one] for one in places)
        if line is None:
            return None, stretches, None
        return _named(line), stretches, _statement(line) if is_whole else None

    repeated = tuple(
        RepeatedWork(
            since,
            *at(line, places, is_whole),
            since is RepeatedSince.STEP and any(operators[place].has_new for place in places),
        )
        for since, line, places, is_whole in _repeated(operators)
    )
    rounds = tuple(
        RecordedRounds(
            _named(one.line),
            one.module,
            tuple((number_of[places[0]], number_of[places[-1]] + 1) for places in of_rounds),
            *facts,
        )
        for one, of_rounds, *facts in _independent(operators)
    )
    unused = tuple(
        UnusedWork(*at(line, places), *facts) for line, places, *facts in _unused(operators, *before)
    )
    padded = tuple(
        PaddedInput(*padding, tuple(map(_named, lines)), _stretches(number_of[one] for one in places))
        for padding, lines, places in _padded(operators, before[0])
    )
    # Where Python ran for a millisecond and more between two operators.
    python = tuple(
        PythonWork(number, _named(line), round(one.python_s * 1e9))
        for place, one in enumerate(operators)
        if one.python_s >= 0.001
        for line in one.site.lines[-1:]
        for number in [number_of[later] for later in range(place, len(operators)) if later in number_of][:1]
    )
    parts = tuple(
        ProgramPart(*((one, True) if isinstance(one, str) else (_named(one), False)), at(None, places)[1])
        for one, places in _parts(operators).items()
    )
    lines = tuple(_program_lines(operators, number_of))
    return RecordedDataflow(tuple(sequences), repeated, rounds, unused, padded, python, parts, lines)


def _program_lines(operators: Sequence[SeenOperator], number_of: Mapping[int, int]) -> Iterator[ProgramLine]:
    """The lines from which operators were called, as a tree: each by the lines that led to it."""
    own: dict[tuple[Line, ...], list[int]] = {}
    rounds: dict[tuple[Line, ...], set[tuple[tuple[LoopRun, int], ...]]] = defaultdict(set)
    for place, one in enumerate(operators):
        lines = () if one.is_view else one.site.lines
        for path in (lines[:depth] for depth in range(1, len(lines) + 1)):
            functions = {line[::2] for line in path}  # their files and names
            around = (of for of in one.site.rounds if not of[0].module and of[0].line[::2] in functions)
            own.setdefault(path, [])
            rounds[path].add(tuple(around))
        if lines:
            own[lines].append(number_of[place])
    known = {lines: number for number, lines in enumerate(own)}
    for lines, numbers in own.items():
        caller = known.get(lines[:-1], -1)
        yield ProgramLine(_named(lines[-1]), caller, len(rounds[lines]), _stretches(numbers))


def _parts(operators: Sequence[SeenOperator]) -> dict[str | Line, list[int]]:
    """The operators by the outermost module, or else by each function that calls them and does not train."""
    training = {function for one in operators if one.site.is_of_optimizer for function in one.site.functions}
    counted = [
        (place, one.site)
        for place, one in enumerate(operators)
        if not (one.is_view or one.is_on_host or one.site.is_backward or one.site.is_of_optimizer)
    ]
    parts = grouped(
        (part, place)
        for place, site in counted
        for part in ([site.module] if site.module else {*site.functions} - training)
    )
    # Those that make up a tenth of the step.
    return {part: places for part, places in parts.items() if len(places) >= 0.1 * len(counted)}


def _by_thread(operators: Sequence[SeenOperator]) -> dict[int, list[int]]:
    return grouped((one.thread_id, place) for place, one in enumerate(operators) if not one.is_view)


def _named(line: Line) -> str:
    """As `file:line function`, the file from where Python would import it."""
    folders = [folder.rstrip("/") + "/" for folder in sys.path if folder and line.file.startswith(folder)]
    return f"{line.file.removeprefix(max(folders, key=len, default=''))}:{line.line} {line.function}"


def _statement(line: Line) -> str | None:
    text = linecache.getline(line.file, line.line).strip()
    try:
        ast.parse(text)
    except SyntaxError:
        return None
    return text or None


def _stretches(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Numbers as stretches of them, each from its first to behind its last."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return tuple(found)


def _repeated(
    operators: Sequence[SeenOperator],
) -> Iterator[tuple[RepeatedSince, Line | None, list[int], bool]]:
    """Operators that need not have run, by line, and whether (almost) all that runs below it is such."""
    recomputed = [place for place, one in enumerate(operators) if one.site.is_recomputed and not one.is_view]
    if recomputed:
        yield RepeatedSince.FORWARD, None, recomputed, True
    working = [
        place
        for place, one in enumerate(operators)
        if one.site.lines and not (one.is_view or one.site.is_recomputed or one.name in _UNWRITTEN)
    ]
    same = grouped((operators[place].key, place) for place in working).values()
    of_step = {place for place in working if operators[place].is_again}
    # All that this step does more than once.
    of_call = _unchanged(operators, {one for ones in same if len(ones) > 1 for one in ones} - of_step)
    of_step = _unchanged(operators, of_step)
    yield from ((RepeatedSince.STEP, *one) for one in _again_by_line(operators, working, of_step))
    first = {ones[0] for ones in same}
    for line, places, is_whole in _again_by_line(operators, working, of_call):
        if others := [one for one in places if one not in first]:
            yield RepeatedSince.CALL, line, others, is_whole


def _again_by_line(
    operators: Sequence[SeenOperator], working: Sequence[int], again: Set[int]
) -> Iterator[tuple[Line, list[int], bool]]:
    """Lines below which all that works is such; then those of which a part is, as of layers of a library."""
    whole = _whole_lines(operators, working, again)
    yield from ((line, places, True) for line, places in whole.items())
    rest = {*again}.difference(*whole.values())
    for line, places in grouped((operators[one].site.lines[-1], one) for one in working).items():
        part = [one for one in places if one in rest]
        if len(part) >= max(_LEAST_PART, _PART * len(places)):
            yield line, part, False


def _unchanged(operators: Sequence[SeenOperator], places: set[int]) -> set[int]:
    """Those whose results nothing else writes to: what is kept of them stays what it is."""
    changed = frozenset().union(*(one.written for at, one in enumerate(operators) if at not in places))
    return {place for place in places if changed.isdisjoint(operators[place].made | operators[place].written)}


def _unused(
    operators: Sequence[SeenOperator],
    before: Sequence[SeenOperator],
    kept: Collection[int],
    unread: Set[int],
    gone: Set[int],
) -> Iterator[tuple[Any, ...]]:
    """Operators whose results nothing reads, by line of the program, as `UnusedWork` has them.

    What the step before left, the steps after it could still read; of the last one that is not known. So
    they are those of the step before, found again in a step that does the same.
    """
    # An optimizer makes its state first; one step may do more at one place: write a line, save a picture.
    found, places = (
        [place for of in _by_thread(one).values() for place in of if not one[place].site.is_of_optimizer]
        for one in (before, operators)
    )
    least = min(len(found), len(places))

    def alike(ats: range) -> int:  # until they differ
        names = ((before[found[at]].name, operators[places[at]].name) for at in ats)
        return next((count for count, (one, other) in enumerate(names) if one != other), len(ats))

    begin = alike(range(least))
    end = alike(range(-1, begin - least - 1, -1))
    if begin + end < _LIKE * max(len(found), len(places)):
        return
    found, places = (of[:begin] + of[len(of) - end :] for of in (found, places))

    # But for sums of gradients that nobody reads, or that were freed: what read them before is needed.
    def is_sum_in_vain(one: SeenOperator) -> bool:
        is_of_gradient = one.site.is_backward and one.name == "aten::add_"
        return bool(one.written) and one.written <= (unread | gone if is_of_gradient else unread)

    effects = [place for place, one in enumerate(before) if one.has_effect and not is_sum_in_vain(one)]
    live = {*kept, *effects}
    for place in reversed(range(len(before))):
        if place in live:
            live |= before[place].needs
    rest = {place for place, earlier in zip(places, found, strict=True) if earlier not in live}
    # What sums such gradients up reads them in the size of the weight, the third that a convolution takes.
    summed = {
        (need, size) for place in rest for need in operators[place].needs for size in operators[place].sizes
    }
    of_weights = [
        place
        for place, one in enumerate(operators)
        if one.name == "aten::convolution_backward"
        and place not in rest
        and ((place, one.sizes[2]) in summed or one.made & unread)
    ]
    if of_weights:
        yield None, of_weights, False, True
    for line, of_line in _whole_lines(operators, places, rest).items():
        yield line, of_line, True, False
        rest -= set(of_line)
    sites = [(operators[place].site, place) for place in sorted(rest)]
    by_line = ((None if of.is_backward else next(reversed(of.lines), None), place) for of, place in sites)
    for some, of_line in grouped(by_line).items():
        yield some, of_line, False, False


def _padded(
    operators: Sequence[SeenOperator], before: Sequence[SeenOperator]
) -> Iterator[tuple[Padding, list[Line], list[int]]]:
    """How inputs of a size are filled up, the lines that copy them, and the operators that work on these."""
    earlier, now = (
        grouped((one.padding[:2], (one.padding, one)) for one in step if one.padding)
        for step in (before, operators)
    )
    for (rows, columns), ones in now.items():
        paddings = [padding for padding, _ in (*ones, *earlier.get((rows, columns), ()))]
        # Of other sizes from step to step, it is the longest row that decides.
        longest = max(one.longest for one in paddings) if (rows, columns) in earlier else columns
        lines = dict.fromkeys(line for _, one in ones for line in one.site.lines[-1:])
        # Of tensors that hold something for each row and column of the input.
        places = [
            place
            for place, one in enumerate(operators)
            if not one.is_view
            and any(
                rows * columns in shape or (columns in shape[1:] and shape[0] % rows == 0)
                for shape in one.sizes
            )
        ]
        mean = sum(padding.mean for padding, _ in ones) / len(ones)
        yield ones[0][0]._replace(longest=longest, mean=mean), list(lines), places


def _whole_lines(
    operators: Sequence[SeenOperator], places: Iterable[int], wanted: Collection[int]
) -> dict[Line, list[int]]:
    """The wanted operators by the outermost line below which (almost) all of `places` are such."""
    of_places = [(operators[place].site.lines, place) for place in places]
    below = grouped(
        (lines[:depth], place) for lines, place in of_places for depth in range(1, len(lines) + 1)
    )
    chosen: set[tuple[Line, ...]] = set()
    of_lines: dict[Line, list[int]] = defaultdict(list)
    for lines in sorted(below, key=len):
        mine = [place for place in below[lines] if place in wanted]
        is_inside = any(lines[:depth] in chosen for depth in range(1, len(lines)))
        if mine and not is_inside and len(mine) >= _LIKE * len(below[lines]):
            chosen.add(lines)
            of_lines[lines[-1]] += mine
    return of_lines


def _independent(
    operators: Sequence[SeenOperator],
) -> Iterator[tuple[LoopRun, list[list[int]], bool, bool, bool, bool]]:
    """Loops and calls whose rounds do the same and need nothing of each other; the outermost such.

    With each the operators of its rounds, whether these differ in their sizes, have weights of their own,
    each pick its part of the same by a number, and have a backward pass after each.
    """
    members: dict[LoopRun, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, one in enumerate(operators):
        for rounds, number in () if one.is_view else one.site.rounds:
            members[rounds][number].append(place)
    taken: set[int] = set()
    # The most first; of calls that several functions see, those of the innermost that sees them all.
    order = {
        one: (-sum(map(len, of.values())), -one.number if one.module else float("-inf"))
        for one, of in members.items()
    }
    for rounds in sorted(members, key=order.__getitem__):
        groups: dict[Hashable, list[list[int]]] = defaultdict(list)
        for places in members[rounds].values():
            names = tuple((operators[place].name, operators[place].is_differentiated) for place in places)
            # What a module is given is as it is: of other sizes it cannot be put together.
            sizes = operators[places[0]].sizes if rounds.module else None
            if len(names) >= _LEAST_OPERATORS or len(members[rounds]) >= _MANY_ROUNDS:
                groups[names, sizes].append(places)
        like = max(groups.values(), key=lambda one: (len(one), len(one[0])), default=[])
        least = 2 if rounds.module else _LEAST_ROUNDS
        if len(like) < least or any(place in taken for places in like for place in places):
            continue
        # Sizes as they are given: a scalar is one of the program's numbers.
        of_sizes = grouped(
            (tuple(size for place in places for size in operators[place].sizes if size), places)
            for places in like
        )
        is_ragged, is_selected = len(of_sizes) > 1, _are_selected(operators, like)
        # Of members that a mask picks, how many there are is chance.
        are_picked = not _SELECTING.isdisjoint(operators[place].name for place in like[0])
        are_parts = not are_picked or (is_ragged and _are_given_parts(operators, like))
        most = max(of_sizes.values(), key=len)
        if not is_selected and are_parts and least <= len(most) > len(like) / 2:
            like, is_ragged = most, False  # the others cannot be put together with these
        weights = {frozenset().union(*(operators[place].weights for place in places)) for places in like}
        has_weights = len(weights) > 1
        is_given = max(map(len, weights)) == 1 if has_weights else _are_given_parts(operators, like)
        if is_ragged and not (is_selected or is_given):
            continue
        if _need_not_wait(operators, rounds, members[rounds], like):
            taken.update(place for places in like for place in places)
            between = operators[like[0][0] : like[-1][-1]]
            has_backward = any(one.site.is_backward for one in between)
            yield rounds, like, is_ragged, has_weights, is_selected, has_backward


def _are_given_parts(operators: Sequence[SeenOperator], like: Sequence[Sequence[int]]) -> bool:
    """Whether rounds are given tensors of different sizes, and do not just make these of one size."""
    begin = like[0][0]
    for column in zip(*like, strict=True):
        ones = [operators[place] for place in column]
        are_given = all(
            any(need < begin for need in one.needs) or one.reads_before or (one.has_new and not one.is_again)
            for one in ones
        )
        if are_given and len({one.sizes for one in ones}) > 1:
            return True
    return False


def _are_selected(operators: Sequence[SeenOperator], like: Sequence[Sequence[int]]) -> bool:
    """Whether each round compares the same with a number of its own, and works on where it is equal."""
    for at, column in enumerate(zip(*like, strict=True)):
        ones = [operators[place] for place in column]
        if ones[0].name == "aten::eq" and len({one.kin for one in ones}) == 1 < len(
            {one.key for one in ones}
        ):
            return any(
                operators[place].name in _SELECTING and column[0] in operators[place].needs
                for place in like[0][at:]
            )
    return False


def _need_not_wait(
    operators: Sequence[SeenOperator],
    rounds: LoopRun,
    members: dict[int, list[int]],
    like: Sequence[Sequence[int]],
) -> bool:
    between = range(like[0][0], like[-1][-1] + 1)
    if any(operators[place].is_of_batch for places in like for place in places):
        return False
    # Rounds that each change what was there before are a loop over tensors; gradients are made meanwhile.
    changed = {
        frozenset[int]()
        .union(*(operators[place].written for place in places))
        .difference(*(one.made for one in operators[places[0] : places[-1]]))
        for places in like
    }
    if len(changed) > 1:
        return False
    round_of = {place: 1 << number for number, places in members.items() for place in places}
    bits: dict[int, int] = {}  # the rounds that the result of an operator comes from
    tied = leaving = on_host = entering = 0
    for place in between:
        one, own = operators[place], round_of.get(place, 0)
        others = functools.reduce(int.__or__, (bits.get(need, 0) for need in one.needs), 0)
        # What is made of weights alone serves all rounds, whichever came first.
        bits[place] = 0 if one.is_of_weights else others | own
        if own and others & ~own:
            if not _ADDING.fullmatch(one.name):
                return False
            tied += 1
        # Python may take what has left a round into a later one, but not a truth value for a number.
        is_decided = one.is_flag and bool(own)
        leaving += one.is_read and bool(others) and not (is_decided or one.is_again)
        on_host += one.is_on_host and bool(others) and not (is_decided or one.is_again)
        entering += one.has_new and not one.is_again and place > like[0][-1]
    # What happens between calls of a module may be anything.
    # A quarter of a round's operators may add to what other rounds have made.
    if tied > 0.25 * sum(map(len, like)) or (rounds.module and leaving):
        return False
    return not on_host or not (entering or _differ_freely(operators, like))


def _differ_freely(operators: Sequence[SeenOperator], like: Sequence[Sequence[int]]) -> bool:
    """Whether numbers that rounds are given are other than the same, one step further each, or a size."""
    sizes = [
        {size for place in places for shape in operators[place].sizes for size in shape} for places in like
    ]
    for column in zip(*like, strict=True):
        for numbers in zip(*(operators[place].numbers for place in column), strict=False):
            steps = {round(after - before, 9) for before, after in itertools.pairwise(numbers)}
            if len(steps) > 1 and not all(map(contains, sizes, numbers)):
                return True
    return False
