// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "outboard/driver.h"

namespace outboard {

class Device;
class Stream;

/// A piece of device memory in use. Owned by the CachingAllocator; opaque to callers but for these fields.
struct Block {
  ob_ptr ptr = 0;
  uint64_t size = 0;       ///< bytes of the block (rounded up)
  uint64_t requested = 0;  ///< bytes asked for
};

/// Counters in bytes or events since start (or since their reset).
struct MemoryStatistics {
  struct Gauge {
    int64_t current = 0, peak = 0, total_allocated = 0, total_freed = 0;
  };
  Gauge allocated, reserved, active, cached;
  int64_t num_alloc_retries = 0, num_ooms = 0, num_device_alloc = 0, num_device_free = 0;
};

/// Device memory with reuse: blocks freed on a stream are reused on that stream without synchronising.
/// Power-of-two-ish size classes, best fit, split and coalesce; memory goes back to the driver on pressure,
/// then the allocation is retried once. Thread-safe.
class CachingAllocator {
 public:
  explicit CachingAllocator(Device& device);

  /// Throws OutOfMemoryError whose text names sizes and advice. bytes = 0 gives a null block pointer.
  Block* allocate(uint64_t bytes, Stream& stream);
  void free(Block* block) noexcept;
  /// The block is also used by work on `stream`: it is reused only when that work is finished.
  void record_stream(Block* block, Stream& stream);
  void empty_cache();
  MemoryStatistics statistics() const;
  void reset_peak();
  void reset_accumulated();
  /// Bytes the allocator may hold (OUTBOARD_MEMORY_LIMIT, or the device's memory).
  uint64_t limit() const;
  void set_limit(uint64_t bytes);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace outboard
