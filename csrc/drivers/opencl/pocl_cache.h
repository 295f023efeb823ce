// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace outboard::opencl {

/// Has PoCL keep its own cache, from which it loads machine code, where no other user can write. Where PoCL would keep
/// it by itself, if that is such a place; else in a new directory that goes when the process ends. A `POCL_CACHE_DIR`
/// that is set stays, if this process can write there. Called before PoCL is loaded.
void place_pocl_cache();

}  // namespace outboard::opencl
