// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "common/thread_pool.h"

namespace outboard::common {

/// Copies memory of the host, with the threads of a pool where that pays. Ranges may overlap only if `overlaps` says
/// so; `pool` may be nullptr.
void copy_on_host(ThreadPool* pool, void* target, const void* source, uint64_t bytes, bool overlaps);

/// Fills memory of the host with a pattern of `size` bytes, of which `bytes` is a multiple.
void fill_on_host(char* target, const void* pattern, uint32_t size, uint64_t bytes);

}  // namespace outboard::common
