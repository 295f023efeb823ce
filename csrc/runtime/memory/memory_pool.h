// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

namespace outboard {

/// Device memory for those who ask for it alone: what is allocated for a pool comes from segments of its own, which are
/// kept for it as long as the pool or memory of it lives. The allocator of each device has its part of a pool.
class MemoryPool {
 public:
  static std::shared_ptr<const MemoryPool> create();

  uint64_t id() const { return id_; }  ///< from 1 on

 private:
  explicit MemoryPool(uint64_t id) : id_(id) {}

  const uint64_t id_;
};

using MemoryPoolPointer = std::shared_ptr<const MemoryPool>;

/// From now on, allocations that the calling thread makes on a device are for a pool. They nest: the last one counts.
void begin_memory_pool(int device, MemoryPoolPointer pool);
/// Ends what was begun last on the calling thread for that device and pool. False if nothing was.
bool end_memory_pool(int device, const MemoryPool& pool);
/// The pool for which the calling thread allocates on a device, or nullptr.
MemoryPoolPointer current_memory_pool(int device);

}  // namespace outboard
