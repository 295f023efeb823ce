// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "distributed/shared_memory.h"

namespace outboard::distributed {

/// How two ranks' real numbers of a dtype become one; a mean is a sum here. Throws c10::TypeError for a dtype that no
/// reduction takes, c10::Error for bits of floating-point numbers.
Combination combination(const c10d::ReduceOp& reduction, at::ScalarType dtype);

/// As Python spells it, without the class.
const char* name_of(const c10d::ReduceOp& reduction);

}  // namespace outboard::distributed
