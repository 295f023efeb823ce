// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace outboard::opencl {

/// Has the LLVM that PoCL compiles with not vectorize straight-line code, if it is one that does so wrongly. Returns
/// whether it was told. Called after PoCL has been loaded, and before it compiles.
///
/// LLVM 15 (Debian 12) gives wrong results for long kernels with AVX-512: of sixteen terms of a bicubic sample some are
/// taken twice. clang 15 does the same to the same code in C++, unless it is given -fno-slp-vectorize. Loops are still
/// vectorized, and what is written with vectors is anyway.
bool keeps_straight_line_code();

}  // namespace outboard::opencl
