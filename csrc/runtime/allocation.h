// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "outboard/driver.h"
#include "runtime/caching_allocator.h"

namespace outboard {

class Device;
class Stream;

/// Where the bytes of an Allocation are.
enum class Residency : uint8_t {
  kUnbacked,  ///< nothing exists yet; contents undefined
  kDevice     ///< in `block`
};

/// What a tensor's storage owns: the record behind its DataPtr. Its `address` is from a reserved, inaccessible
/// range, so that a host dereference faults at once. `resolve` is the only way to a device pointer.
class Allocation {
 public:
  /// Reserves an address; takes no device memory.
  static Allocation* create(Device& device, uint64_t bytes);
  /// The allocation that contains a reserved address, or nullptr.
  static Allocation* find(const void* address);

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept;

  Device& device() const { return device_; }
  uint64_t size() const { return size_; }
  void* address() const { return address_; }
  Residency residency() const {
    return pointer_.load(std::memory_order_acquire) == 0 ? Residency::kUnbacked : Residency::kDevice;
  }

  /// The device pointer of byte 0, materialised for use by work on `stream`. O(1) and without a lock when resident;
  /// memory used on a stream other than its first is recorded there. Throws OutOfMemoryError. Zero-size gives 0.
  ob_ptr resolve(Stream& stream);
  void record_stream(Stream& stream);

 private:
  Allocation(Device& device, uint64_t bytes);
  ~Allocation();
  ob_ptr resolve_slowly(Stream& stream);

  Device& device_;
  uint64_t size_;
  void* address_ = nullptr;
  Block* block_ = nullptr;
  Stream* home_ = nullptr;
  std::atomic<ob_ptr> pointer_{0};  // of `block_`; set last, once `block_` and `home_` are
  std::atomic<int64_t> references_{1};
  std::mutex mutex_;
};

}  // namespace outboard
