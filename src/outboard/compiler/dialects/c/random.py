# SPDX-License-Identifier: Apache-2.0
"""Philox numbers."""

from __future__ import annotations

import torch

from .prelude import Prelude, choose, helper
from .types import type_name


@helper("philox")
def _helper_philox(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Four 32-bit words from a 64-bit seed and counter (Philox 4x32, ten rounds); returns words 0 and 1 packed."""
    u, ul = type_name(torch.uint32, width), type_name(torch.uint64, width)
    convert = f"convert_{u}" if width > 1 else f"({u})"
    widen = f"convert_{ul}" if width > 1 else f"({ul})"
    shift = f"(({ul})(32))"
    return (
        f"{ul} {full}({ul} seed, {ul} offset) {{\n"
        f"  {u} c0 = {convert}(offset), c1 = {convert}(offset >> {shift}), c2 = ({u})(0), c3 = ({u})(0);\n"
        f"  {u} k0 = {convert}(seed), k1 = {convert}(seed >> {shift});\n"
        f"  for (int round = 0; round < 10; ++round) {{\n"
        f"    {u} h0 = mul_hi(c0, ({u})(0xD2511F53u)), l0 = c0 * 0xD2511F53u;\n"
        f"    {u} h1 = mul_hi(c2, ({u})(0xCD9E8D57u)), l1 = c2 * 0xCD9E8D57u;\n"
        f"    c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0;\n"
        f"    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;\n  }}\n"
        f"  return {widen}(c0) | ({widen}(c1) << {shift});\n}}"
    )


@helper("rand")
def _helper_rand(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    philox = prelude.use("philox", torch.uint64, width)
    f, ul, u = type_name(torch.float32, width), type_name(torch.uint64, width), type_name(torch.uint32, width)
    to_u = f"convert_{u}" if width > 1 else f"({u})"
    to_f = f"convert_{f}" if width > 1 else f"({f})"
    # 24 bits: every result is a float below 1.
    return (
        f"{f} {full}({ul} seed, {ul} offset) "
        f"{{ return {to_f}({to_u}({philox}(seed, offset)) >> ({u})(8)) * 5.9604644775390625e-8f; }}"
    )


@helper("randn")
def _helper_randn(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    philox, cosine = prelude.use("philox", torch.uint64, width), prelude.use("cos", torch.float32, width)
    f, ul, u = type_name(torch.float32, width), type_name(torch.uint64, width), type_name(torch.uint32, width)
    to_u = f"convert_{u}" if width > 1 else f"({u})"
    to_f = f"convert_{f}" if width > 1 else f"({f})"
    # Box-Muller; the radius takes a uniform number in (0, 1], so that its logarithm is finite, of 31 bits: it makes the
    # tail.
    return (
        f"{f} {full}({ul} seed, {ul} offset) {{ {ul} bits = {philox}(seed, offset); "
        f"{f} u1 = ({to_f}({to_u}(bits) >> ({u})(1)) + 0.5f) * 4.656612873077392578125e-10f; "
        f"{f} u2 = {to_f}({to_u}(bits >> ({ul})(32)) >> ({u})(8)) * 5.9604644775390625e-8f; "
        f"return sqrt(-2.0f * log(u1)) * {cosine}(6.283185307179586f * u2); }}"
    )


@helper("randint64")
def _helper_randint64(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    philox = prelude.use("philox", torch.uint64, width)
    sl, ul = type_name(torch.int64, width), type_name(torch.uint64, width)
    cast = f"as_{ul}"
    # A range of 2^64 shows as 0: then all bits count.
    modulo = choose(torch.uint64, width, f"range == ({ul})(0)", "bits", "bits % divisor")
    divisor = choose(torch.uint64, width, f"range == ({ul})(0)", f"({ul})(1)", "range")
    return (
        f"{sl} {full}({ul} seed, {ul} offset, {sl} low, {sl} high) {{ {ul} bits = {philox}(seed, offset); "
        f"{ul} range = {cast}(high) - {cast}(low); {ul} divisor = {divisor}; "
        f"return as_{sl}({modulo} + {cast}(low)); }}"
    )
