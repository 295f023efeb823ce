// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "outboard/driver.h"
#include "runtime/base/memory_lock.h"
#include "runtime/memory/address_space.h"
#include "runtime/memory/host_buffers.h"
#include "runtime/memory/memory_pool.h"

namespace outboard {

class Allocation;
class Arrangement;
class CachingAllocator;
class Device;
class MemoryLayout;
class Stream;
class Work;
class WorkOrder;
enum class Access : uint8_t;
enum class State : uint8_t;
struct Block;

/// How much of a device's memory is not where the device computes, and what was moved. Bytes, and counts.
struct LazyStatistics {
  struct Gauge {
    int64_t bytes = 0, count = 0;
  };
  Gauge unbacked, zero, host, spilled, arranged;  ///< now
  /// Since start or reset: contents made on the device on first use (zeros filled, host contents copied), moved out
  /// under pressure, and moved back; brought to a layout of the driver's, or from one.
  Gauge materialized, spills, restores, relayouts;
};

/// Decides which allocations of one device are in its memory. An allocation gets memory when work needs it; when the
/// device is full, those used longest ago move to the host, in the order of their own stream, and come back when they
/// are needed again.
class Residency {
 public:
  explicit Residency(Device& device);
  ~Residency();

  /// Addresses of the device that have no owner. The caller holds the lock.
  AddressSpace::DeviceSlots& slots() { return slots_; }

  /// Memory of the device, with other allocations moved to the host if it is full. Throws OutOfMemoryError whose text
  /// names sizes and advice. bytes = 0 gives nullptr. `pool`: whose memory it is to be.
  Block* allocate(uint64_t bytes, Stream& stream, const MemoryPoolPointer& pool = nullptr);

  /// The part of class Work: see there.
  ob_ptr resolve(Allocation& allocation, Stream& stream, Access access);
  /// How often an allocation has got memory. The caller holds the lock.
  uint64_t memory_given() const { return memory_given_; }

  /// Takes an allocation's memory and host copy away; its contents are then undefined.
  void discard(Allocation& allocation) noexcept;
  bool mark_zero(Allocation& allocation);
  bool adopt(Allocation& allocation, std::shared_ptr<HostBuffer> buffer);
  std::shared_ptr<const HostBuffer> host_contents(Allocation& allocation);

  /// An allocation that holds in a layout what lies in another from `offset` on, with a reference for the caller, who
  /// must not write there. If that is all of the other's contents, they are kept so until other work needs them.
  /// `work` is the caller's.
  Allocation* to_layout(Allocation& allocation, uint64_t offset, const std::shared_ptr<const MemoryLayout>& layout,
                        Work& work);
  /// Has an allocation's contents from `offset` on be what `arranged`, in which nobody writes any more, holds in a
  /// layout. If those are all of its contents, they are kept so until other work needs them.
  void from_layout(Allocation& arranged, Allocation& allocation, uint64_t offset,
                   const std::shared_ptr<const MemoryLayout>& layout, Work& work);

  /// A buffer that the host may write at once. Throws OutOfMemoryError.
  std::shared_ptr<HostBuffer> host_buffer(uint64_t bytes);

  /// Moves the least recently used allocation that may move to the host. False if there is none.
  bool make_room();
  /// Gives host memory that nobody uses back to the system.
  void empty_cache();

  LazyStatistics statistics() const;
  void reset_accumulated();

 private:
  /// What a search for something to move found.
  struct Search {
    Allocation* victim;  // nullptr: nothing
    bool busy;           // other threads keep memory that they will let go
  };

  std::shared_ptr<HostBuffer> buffer_for(uint64_t bytes, Stream* stream);
  void bring_in(Allocation& allocation, Stream& stream, Access access);
  void share(Allocation& allocation, Stream& stream);
  bool in_graph(const Allocation& allocation) const;
  static bool is_whole(const Allocation& allocation, uint64_t offset, const MemoryLayout& layout, const Work& work);
  bool arrange(Allocation& allocation, std::shared_ptr<const Arrangement> arrangement);
  void keep_arranged(Allocation& allocation, std::shared_ptr<const Arrangement> arrangement) noexcept;
  bool fill_memory(Allocation& allocation, Stream& stream, Block& to);
  void copy_in(HostBuffer& from, Stream& stream, Block& to);
  void settle(Allocation& allocation, State state) noexcept;
  LazyStatistics::Gauge* gauge_of(State state);
  Search search() const;
  void let_others_work();
  void spill(Allocation& allocation);
  void link(Allocation& allocation) noexcept;
  void unlink(Allocation& allocation) noexcept;

  Device& device_;
  CachingAllocator& allocator_;
  WorkOrder& order_;
  MemoryLock& lock_;
  AddressSpace::DeviceSlots slots_;
  HostBuffers buffers_;
  LazyStatistics statistics_;  // `unbacked` is counted when asked for
  Allocation* newest_ = nullptr;
  uint64_t memory_given_ = 0;
};

/// False if OUTBOARD_LAZY=0: then memory is taken when a tensor is made.
bool is_lazy();
/// The same at any time for which the environment variable of this name is 1.
void set_eager_variable(const std::string& name);

/// Whether contents that come from the host wait there until work needs them, even where the host could write them to
/// the device's memory at once. False at first.
bool contents_wait();
void set_contents_wait(bool wait);

}  // namespace outboard
