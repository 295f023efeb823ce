// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace outboard::aten {

/// How results lie in memory where PyTorch's shape function does not say so.
struct ResultLayout {
  enum Kind : uint8_t {
    kContiguous,
    kContiguousOfComplex,  ///< contiguous if the first argument is complex
    kOfFirstOperand,       ///< where the shape function has the second decide, too
    kOfFirstAlone,         ///< where the shape function has others decide
    kOfFormat              ///< images in the memory format of an argument
  };
  Kind kind;
  size_t argument = 0;  ///< of `kOfFormat`
};

}  // namespace outboard::aten
