// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include "runtime/streams/stream.h"

namespace outboard::aten {

/// Page-locked host memory (ordinary memory where the driver has none), cached by size. A block that queued copies
/// still read or write is handed out again only when they are finished.
at::HostAllocator* pinned_allocator();

/// Whether an address lies in memory of `pinned_allocator`.
bool is_pinned(const void* address);

/// Notes that work queued on `stream` uses the pinned block around `address`. No-op for other memory.
void record_pinned_use(const void* address, Stream& stream);

}  // namespace outboard::aten
