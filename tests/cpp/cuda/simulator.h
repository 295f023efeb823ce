// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/api.h"

/// What simulated libraries share with the simulated driver API.
namespace simulator {

struct Context;

/// What a call returns before it does anything: a failure that was asked for. Counts it.
outboard::cuda::CUresult entered(const char* function);
/// The same of a call that needs a current context, which is not lost.
outboard::cuda::CUresult entered_context(const char* function);

/// The calling thread's; nullptr: it has none.
Context* current_context();
/// Whether a range lies in one allocation of a context.
bool lies_in_block(Context& context, uint64_t pointer, size_t bytes);

}  // namespace simulator
