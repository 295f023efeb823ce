// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/memory/caching_allocator.h"
#include "runtime/memory/host_buffers.h"
#include "runtime/memory/memory_layout.h"
#include "runtime/memory/residency.h"
#include "runtime/memory/work_order.h"

namespace outboard {

class Device;
class Stream;

/// Where the bytes of an Allocation are.
enum class State : uint8_t {
  kUnbacked,  ///< nowhere yet; contents undefined
  kZero,      ///< nowhere yet; all bytes are zero
  kHost,      ///< in host memory, since they came from there
  kDevice,    ///< in device memory
  kSpilled,   ///< in host memory, moved there because the device was full
  kArranged   ///< in another allocation alone, in a layout of the driver's
};

/// What work does with what an allocation held before.
enum class Access : uint8_t {
  kKeep,      ///< reads it, or writes a part
  kRead,      ///< writes nothing: what else holds the same contents stays as it is
  kOverwrite  ///< the work writes every byte: old contents need not exist
};

/// What a tensor's storage owns: the record behind its DataPtr. Its `address` is from a reserved, inaccessible
/// range, so that a host dereference faults at once. `Work` and `Pin` are the only ways to a device pointer.
class Allocation {
 public:
  /// A record with a reserved address; takes no device memory (unless OUTBOARD_LAZY=0).
  static Allocation* create(Device& device, uint64_t bytes);
  /// A record without an address, for memory that never becomes a tensor.
  static Allocation* create_internal(Device& device, uint64_t bytes);
  /// One on memory of the host that somebody else gave, for as long as `memory` lives, and that never moves. The device
  /// takes host memory; its allocator has no part in this.
  static Allocation* create_over(Device& device, void* address, uint64_t bytes, std::shared_ptr<const void> memory);
  /// The allocation that contains a reserved address, or nullptr.
  static Allocation* find(const void* address);

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept;

  Device& device() const { return device_; }
  uint64_t size() const { return size_; }
  void* address() const { return address_; }
  /// What an allocation of `create_over` is on; nullptr for any other.
  const std::shared_ptr<const void>& foreign_memory() const { return foreign_; }
  State state() const { return state_.load(std::memory_order_acquire); }

  /// Makes every byte zero without work for the device, whose memory is given up. False, and nothing is done, if the
  /// memory has to stay (pins, OUTBOARD_LAZY=0).
  bool mark_zero();
  /// Replaces the contents by those of a buffer of `residency().host_buffer(size())`, on the host until work needs
  /// them. False, and nothing is done, if the allocation is on the device (or OUTBOARD_LAZY=0).
  bool adopt(std::shared_ptr<HostBuffer> buffer);
  /// The contents in host memory, ready to be read and not to be written, if they are there; else nullptr.
  std::shared_ptr<const HostBuffer> host_contents();
  /// What its contents are in, if they are in a layout of the driver's, else nullptr. Other work than that which asks
  /// for the layout finds them by strides, as ever, and has them so from then on: alone, unless it only reads.
  std::shared_ptr<const Arrangement> arrangement();
  /// Its memory, if any, is also used by work on `stream`: it is not reused before that work is done.
  void record_stream(Stream& stream);

  /// Exempts the allocation from being moved while the host or a library call uses it, until `unpin`, which needs no
  /// lock. Counted.
  void pin();
  void unpin() noexcept { pins_.fetch_sub(1, std::memory_order_release); }
  /// The same for as long as a user wishes: nobody waits for its end.
  void hold();
  void let_go() noexcept { holds_.fetch_sub(1, std::memory_order_release); }
  int32_t holds() const { return holds_.load(std::memory_order_acquire); }
  bool pinned() const { return pins_.load(std::memory_order_acquire) != 0 || holds() != 0 || foreign_ != nullptr; }

 private:
  friend class Residency;
  friend class Work;

  Allocation(Device& device, uint64_t bytes, std::shared_ptr<const void> foreign = nullptr);
  ~Allocation() = default;

  Device& device_;
  const uint64_t size_;
  const MemoryPoolPointer pool_;  // whose memory it takes, also when it comes back from the host; nullptr: anybody's
  const std::shared_ptr<const void> foreign_;
  void* address_ = nullptr;
  std::atomic<int64_t> references_{1};
  std::atomic<int32_t> pins_{0}, holds_{0};  // raised under the device's memory lock

  // Guarded by the device's memory lock; `state_` may be read without it.
  std::atomic<State> state_{State::kUnbacked};
  bool was_pinned_ = false;  // since it is on the device: work that used it may be newer than `last_use_` says
  bool unordered_ = false;   // queued work of `home_` still fills the memory; other streams have to wait for it
  Stream* home_ = nullptr;   // whose pool `block_` is from
  Block* block_ = nullptr;   // kDevice, unless the memory is foreign
  ob_ptr pointer_ = 0;       // of `block_`, or foreign
  uint64_t last_use_ = 0;    // number of a Work
  std::shared_ptr<HostBuffer> host_;                // kHost, kSpilled
  std::shared_ptr<const Arrangement> arrangement_;  // kArranged; kDevice, if nothing was written since
  Allocation* older_ = nullptr;                     // neighbours in the list of what is on the device, in no order
  Allocation* newer_ = nullptr;
};

/// One piece of work in preparation: resolves its arguments to device pointers, which stay valid until the Work ends.
/// Submit the work before that; stream order protects the memory from then on. Steps of one device exclude each
/// other, so keep them short; on the same thread they nest.
class Work {
 public:
  explicit Work(Stream& stream);
  ~Work() { order_.end(); }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  Stream& stream() const { return stream_; }

  /// The device pointer of byte 0, for work on the Work's stream. Materialises the allocation, moving others out of
  /// the device's memory if it is full. Throws OutOfMemoryError. 0 for zero bytes.
  ob_ptr resolve(Allocation& allocation, Access access = Access::kKeep) {
    allocation.last_use_ = number_;
    const bool stays = access == Access::kRead || allocation.arrangement_ == nullptr;
    if (allocation.home_ == &stream_ && stays) return allocation.pointer_;  // resident, and on this stream
    return residency_.resolve(allocation, stream_, access);
  }

 private:
  const MemoryScope scope_;
  Stream& stream_;
  Residency& residency_;
  WorkOrder& order_;
  const uint64_t number_;
};

/// Keeps one allocation alive, in device memory and at the same place while the Pin lives: for those who use the
/// pointer outside a Work (the host, library calls, other libraries).
class Pin {
 public:
  Pin(Allocation& allocation, Stream& stream, Access access = Access::kKeep);
  ~Pin();
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

  ob_ptr pointer() const { return pointer_; }
  Allocation& allocation() const { return allocation_; }

 private:
  Allocation& allocation_;
  ob_ptr pointer_;
};

}  // namespace outboard
