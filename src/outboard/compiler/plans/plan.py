# SPDX-License-Identifier: Apache-2.0
"""The Plan: what the compiler emits and the C++ runtime executes (mirror of ``csrc/runtime/plans/plan.h``).

``schema`` says how it is written.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Op(enum.IntEnum):
    """Instructions of an expression; each but CONST and SYMBOL takes its operands from the stack."""

    CONST = 0
    SYMBOL = 1
    ADD = 2
    SUB = 3
    MUL = 4
    FLOOR_DIV = 5
    MOD = 6
    CEIL_DIV = 7
    MIN = 8
    MAX = 9
    EQ = 10
    NE = 11
    LT = 12
    LE = 13
    AND = 14
    OR = 15
    NOT = 16
    SELECT = 17
    POW = 18
    SHIFT_LEFT = 19
    SHIFT_RIGHT = 20
    BIT_AND = 21


#: Postfix code: ``(op, immediate)`` pairs.
Expr = list[tuple[Op, int]]


def const(value: int) -> Expr:
    """The expression with a fixed value."""
    return [(Op.CONST, int(value))]


class InputKind(enum.IntEnum):
    TENSOR = 0
    INT = 1
    FLOAT = 2
    NONE = 3


class SymbolSource(enum.IntEnum):
    SIZE = 0
    STRIDE = 1
    STORAGE_OFFSET = 2
    INT = 3
    FLOAT = 4
    DERIVED = 5
    COMPUTE_UNITS = 6
    FLOAT_ORDER = 7  #: the place of a float among all floats (``ordering.order_of``)


@dataclass
class Symbol:
    """Where a run-time value comes from: a size, stride, offset or scalar of an input, an expression, or the device."""

    source: SymbolSource
    input: int = 0
    dim: int = 0
    derived: Expr = field(default_factory=list)


@dataclass
class ViewSpec:
    """A strided view of a buffer; ``dtype`` is the ``c10::ScalarType`` number; offset and strides in elements."""

    buffer: int
    dtype: int
    sizes: list[Expr]
    strides: list[Expr]
    offset: Expr


class ArgumentKind(enum.IntEnum):
    POINTER = 0
    INT64 = 1
    INT32 = 2
    FLOAT32 = 3
    FLOAT64 = 4
    ASSERTIONS = 5


@dataclass
class Argument:
    """One kernel argument (``expr`` is the byte offset of a POINTER, the value of an INT)."""

    kind: ArgumentKind
    buffer: int = 0
    symbol: int = 0
    expr: Expr = field(default_factory=lambda: const(0))


class CallArgumentKind(enum.IntEnum):
    NONE = 0
    TENSOR = 1
    INT = 2
    FLOAT = 3
    FLOAT_SYMBOL = 4
    BOOL = 5
    STRING = 6
    LIST = 7
    DTYPE = 8
    DEVICE = 9
    LAYOUT = 10
    MEMORY_FORMAT = 11


@dataclass
class CallArgument:
    """One argument of a library call; which field holds the value follows from ``kind``."""

    kind: CallArgumentKind
    tensor: ViewSpec | None = None
    expr: Expr = field(default_factory=list)
    number: float = 0.0
    value: int = 0
    text: str = ""
    items: list[CallArgument] = field(default_factory=list)


@dataclass
class Allocate:
    """Makes buffer ``buffer`` of ``nbytes`` bytes."""

    buffer: int
    nbytes: Expr


@dataclass
class Free:
    """Gives an intermediate buffer back."""

    buffer: int


@dataclass
class Launch:
    """Launches kernel ``kernel``; ``global_size`` counts work-items, ``local_size[0] == 0`` lets the driver choose."""

    kernel: int
    global_size: tuple[Expr, Expr, Expr]
    local_size: tuple[int, int, int]
    arguments: list[Argument]


@dataclass
class Call:
    """Calls a library function. A functional call's results are written into ``results`` (allocated before);
    an ``out=`` variant takes its outputs as arguments. ``argument_names[i]`` is "" for a positional argument."""

    name: str
    call_arguments: list[CallArgument]
    argument_names: list[str]
    results: list[ViewSpec] = field(default_factory=list)
    fallback: bool = False


@dataclass
class Execute:
    """Runs what a graph compiler made of a graph: the driver's function that is loaded from ``code``. ``name`` is what
    users see of it; ``call_arguments`` are tensors and numbers, in the order of the graph's inputs."""

    name: str
    code: bytes
    call_arguments: list[CallArgument]
    results: list[ViewSpec]


@dataclass
class Seeds:
    """Fills ``buffer`` with ``nbytes``/8 int64 seeds from the generator in force."""

    buffer: int
    nbytes: Expr


@dataclass
class Copy:
    """Copies ``nbytes`` contiguous bytes between buffers."""

    source: int
    source_offset: Expr
    target: int
    target_offset: Expr
    nbytes: Expr


@dataclass
class Fill:
    """Fills ``nbytes`` bytes of a buffer with a pattern of 1, 2, 4, 8 or 16 bytes."""

    target: int
    target_offset: Expr
    nbytes: Expr
    pattern: bytes


@dataclass
class ToLayout:
    """Has buffer ``target`` hold in a layout what lies in ``source`` from ``source_offset`` bytes on."""

    source: int
    source_offset: Expr
    target: int
    layout: int


@dataclass
class FromLayout:
    """Has what lies in ``target`` from ``target_offset`` bytes on be what buffer ``source`` holds in a layout, which no
    step writes into after that."""

    source: int
    target: int
    target_offset: Expr
    layout: int


Step = Allocate | Free | Launch | Call | Seeds | Copy | Execute | Fill | ToLayout | FromLayout


class OutputKind(enum.IntEnum):
    TENSOR = 0
    INPUT = 1
    INT = 2
    NONE = 3
    FLOAT_SYMBOL = 4


@dataclass
class Output:
    """One result: a view of a buffer, an input itself, an integer, nothing, or a float symbol."""

    kind: OutputKind
    view: ViewSpec | None = None
    input: int = 0
    expr: Expr = field(default_factory=list)
    symbol: int = 0


class AssertionKind(enum.IntEnum):
    RUNTIME_ERROR = 0
    INDEX_ERROR = 1


@dataclass(frozen=True)
class Assertion:
    """What a kernel means by a code that it writes when it fails an assertion, and what is raised then."""

    code: int
    kind: AssertionKind
    text: str


@dataclass(frozen=True)
class LayoutSpec:
    """How contents lie that the driver is to have in a way of its own: a tensor, as which they lie in order, another,
    as which they lie in the layout, and executables that make one of the other, with the bytes that they need besides.
    ``dtype`` and ``arranged_dtype`` are ``c10::ScalarType`` numbers."""

    name: str
    dtype: int
    sizes: tuple[int, ...]
    arranged_dtype: int
    arranged_sizes: tuple[int, ...]
    to_code: bytes
    to_scratch: int
    from_code: bytes
    from_scratch: int


@dataclass
class Plan:
    """See ``csrc/runtime/plans/plan.h`` for the meaning of each field."""

    inputs: list[InputKind]
    symbols: list[Symbol]
    guards: list[Expr]
    buffer_count: int
    programs: list[tuple[str, str]]  #: (source, build options)
    kernels: list[tuple[int, str]]  #: (program number, entry point)
    assertions: list[Assertion]
    layouts: list[LayoutSpec]
    steps: list[Step]
    outputs: list[Output]
