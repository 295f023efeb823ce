# SPDX-License-Identifier: Apache-2.0
"""The text that all dialects of the C family share: type names, literals, index expressions, memory access and the
operators of the kernel vocabulary.

Everything is printed either for one lane (width 1) or for several in one explicit vector, because CPU implementations
of OpenCL C do not turn scalar loops into vectors well. Conventions:

* a bool is an ``int``: 0 or 1 in one lane, 0 or -1 in a lane of a vector (what comparisons yield);
* half, bfloat16 and floats of 8 bits exist in memory only; they are computed in ``float``;
* signed integers wrap: arithmetic goes through the unsigned type, whose overflow is defined.
"""

from __future__ import annotations

from . import accumulation, random, special, waves
from .atomics import atomic_add_helper
from .indices import IndexPrinter
from .memory import load, load_pointer, narrow_bits, narrow_values, narrowed, pack, packed, store, to_pack
from .operators import SUPPORTED, bitcast, broadcast, convert, operator, operator_together, pays_together
from .prelude import Prelude, lane
from .reductions import better, combine, identity_of, nan_bits, quick_combine, with_nan
from .types import TOGETHER, bits_dtype, is_in_memory, literal, memory_type, type_name

#: Their helpers are found by name.
HELPER_FAMILIES = (accumulation, random, special, waves)

__all__ = [
    "SUPPORTED", "TOGETHER", "IndexPrinter", "Prelude", "atomic_add_helper", "better", "bitcast", "bits_dtype",
    "broadcast", "combine", "convert", "identity_of", "is_in_memory", "lane", "literal", "load", "load_pointer",
    "memory_type", "nan_bits", "narrow_bits", "narrow_values", "narrowed", "operator", "operator_together",
    "pack", "packed", "pays_together", "quick_combine", "store", "to_pack", "type_name", "with_nan",
]  # fmt: skip
