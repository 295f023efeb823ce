// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace outboard {

class Device;
class Stream;

/// Host memory that stands in for device memory: page-locked where the driver can.
struct HostBuffer {
  void* memory = nullptr;
  uint64_t bytes = 0;  ///< of contents
  uint64_t capacity = 0;
  Stream* stream = nullptr;  ///< whose queued work may still read or write it; nullptr: none
  bool from_driver = false;
};

/// A device's host buffers, reused by size. Not thread-safe: guarded by the device's memory lock.
class HostBuffers {
 public:
  explicit HostBuffers(Device& device) : device_(device) {}

  /// A buffer for queued work of `stream`, or, with nullptr, for the host at once. Throws OutOfMemoryError.
  HostBuffer* take(uint64_t bytes, Stream* stream);
  void give_back(HostBuffer* buffer) noexcept;
  /// Returns buffers that nobody uses to the system, oldest first, until at most `kept` bytes remain. With `wait`,
  /// waits for queued work that still uses them; without, such buffers stay.
  void trim(uint64_t kept, bool wait);

 private:
  HostBuffer* make(uint64_t bytes, uint64_t capacity);
  void destroy(HostBuffer* buffer) noexcept;

  Device& device_;
  std::vector<HostBuffer*> cached_;
  uint64_t cached_bytes_ = 0;
};

}  // namespace outboard
