# SPDX-License-Identifier: Apache-2.0
"""What may run on the CPU, and why: by this list judges tell a fallback that is known from one that nobody has seen.

Results of an operator that quietly runs on the CPU are right, so a judge of numbers alone passes. Each that compares
numbers therefore gives the fallbacks that it counted to :func:`unexplained`, and fails for what comes back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

Dtypes = frozenset[torch.dtype]

WIDE_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
_NARROW = frozenset(
    {torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu}
)
#: Operators that make complex numbers of real ones, so that a call of none has some inside.
_MAKES_COMPLEX = re.compile(r"_fft_|linalg_eig\b|_linalg_eigvals|complex|polar")
#: What is computed on the device for any complex64 and complex128 (``csrc/torch/eager/complex_arithmetic.cpp``).
_OF_COMPLEX = (
    "a?(cos|sin|tan)h?|add|conj_physical|eq|exp|expm1|isinf|isnan|lerp|log|log10|log1p|log2|mul|ne|neg|pow|reciprocal"
    "|rsqrt|rsub|sgn|sigmoid|sqrt|sub"
)


@dataclass(frozen=True)
class Known:
    """Operators that run on the CPU: their names without namespace and overload match ``names`` as a whole, and
    ``when`` holds of the dtypes of the call that ran them, or ran what ran them. ``reason`` is for readers."""

    names: str
    reason: str
    when: Callable[[Dtypes], bool] = lambda dtypes: True


def _is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


#: In the order in which they are asked.
KNOWN = (
    Known(
        r"_?linalg_(cholesky_ex|det|eig|eigh|eigvals|householder_product|inv_ex|ldl_factor_ex|ldl_solve|lstsq|lu"
        r"|lu_factor_ex|lu_solve|matrix_exp|qr|slogdet|solve_ex|solve_triangular|svd)"
        r"|cholesky|cholesky_inverse|_cholesky_solve_helper|geqrf|lu_unpack|ormqr|triangular_solve",
        "factorizations of matrices are LAPACK's: their steps depend on each other, which loop nests do not express",
    ),
    Known(r"_fft_(c2c|c2r|r2c)", "Fourier transforms are the host's library's: no kernel of ours computes one"),
    Known(
        r"(special_)?(airy_ai|bessel_[jy][01]|i0|i0e|i1|i1e|modified_bessel_[ik][01]|ndtri|scaled_modified_bessel_k[01]"
        r"|spherical_bessel_j0|zeta)|polygamma|igammac?|kaiser_window",
        "special functions of which no kernel language has a word, and PyTorch's compiler no formula",
    ),
    Known(
        r"index_put|scatter|scatter_add|scatter_reduce",
        "with deterministic algorithms, elements with one place are written in the CPU's order",
        lambda dtypes: torch.are_deterministic_algorithms_enabled(),
    ),
    Known(r"view_copy", "PyTorch's shape function refuses what is no view, which its kernel copies"),
    Known(r"poisson|binomial|_standard_gamma|_sample_dirichlet", "draws until it accepts: counts differ by element"),
    Known(
        r"special_(chebyshev_polynomial_[tuvw]|hermite_polynomial_he?|laguerre_polynomial_l|legendre_polynomial_p"
        r"|shifted_chebyshev_polynomial_[tuvw])|sort",
        "CUDA has no such kernel for unsigned integers of more than 8 bits either",
        lambda dtypes: bool(dtypes & WIDE_UNSIGNED),
    ),
    Known(
        r"convolution(_overrideable|_backward)?|max_pool[23]d_with_indices|avg_pool[123]d",
        "CUDA has no such kernel for integers",
        lambda dtypes: any(map(_is_integer, dtypes)),
    ),
    Known(
        r"_?upsample_bi(cubic|linear)2d(_aa)?",
        "images of bytes are resized in fixed point, of which CUDA has no kernel",
        lambda dtypes: torch.uint8 in dtypes,
    ),
    Known(r"_dirichlet_grad|_standard_gamma_grad", "series of special functions, other ones in each part of the plane"),
    Known(r"segment_reduce|_segment_reduce_backward", "segments of any length: a loop nest has one for all"),
    Known(r"histogram|_histogramdd_\w+", "CUDA has no such kernel"),
    Known(r"nonzero_static", "no kernel of ours keeps a part of the places of a mask"),
    Known(r"hash_tensor", "a sum of exclusive ors, for which no reduction of ours is made"),
    Known(r"gcd", "no loop nest ends after as many steps as an element needs"),
    Known(
        r"fractional_max_pool3d_backward|multilabel_margin_loss_backward|_pdist_backward|linalg_matrix_exp",
        "gradients for which neither PyTorch's compiler nor Outboard has a formula",
    ),
    Known(
        r"_scaled_mm(_v2)?", "products of floats of 8 bits need a unit of the hardware's", lambda d: bool(d & _NARROW)
    ),
    Known(
        rf"(?!(?:{_OF_COMPLEX})$)\w+",
        "PyTorch's compiler, which writes the loops, has none over complex numbers, nor is there a formula over pairs",
        lambda dtypes: any(dtype.is_complex for dtype in dtypes),
    ),
    Known(r"\w+", "CUDA has few kernels for pairs of halves either", lambda dtypes: torch.complex32 in dtypes),
)


def reason_for(name: str, dtypes: Dtypes) -> str:
    """Why an operator, such as "aten::gcd.out", may run on the CPU for a call with tensors of ``dtypes``; or ''."""
    base = name.partition("::")[2].partition(".")[0].removesuffix("_")
    return next((known.reason for known in KNOWN if re.fullmatch(known.names, base) and known.when(dtypes)), "")


def unexplained(fallbacks: Iterable[str], dtypes: Iterable[torch.dtype]) -> list[str]:
    """Those of a call's fallbacks for which there is no reason. ``dtypes``: of its tensors, results among them. The
    simulator has no compiler, or an example of one, so that anything may run on the CPU."""
    if os.environ.get("OUTBOARD_DRIVER") == "sim":
        return []
    names = [*fallbacks]
    inside = {torch.complex64} if any(_MAKES_COMPLEX.search(name) for name in names) else set()
    found = frozenset(dtypes) | inside
    return sorted(name for name in names if not reason_for(name, found))


def new_fallbacks(device: str, before: dict[str, int]) -> dict[str, int]:
    """CPU fallbacks since ``before``, by operator."""
    now = getattr(torch, torch.device(device).type).fallbacks()
    return {name: count - before.get(name, 0) for name, count in now.items() if count > before.get(name, 0)}
