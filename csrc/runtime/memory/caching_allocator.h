// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "outboard/driver.h"
#include "runtime/memory/memory_context.h"
#include "runtime/memory/memory_pool.h"

namespace outboard {

class Device;
class Stream;

/// A piece of device memory in use. Owned by the CachingAllocator; opaque to callers but for these fields.
struct Block {
  ob_ptr ptr = 0;
  uint64_t size = 0;       ///< bytes of the block (rounded up)
  uint64_t requested = 0;  ///< bytes asked for
  uint64_t last_use = 0;   ///< of the memory before the block was made, by work of its stream: see `free`; 0: none
};

/// Of memory that work of its stream may have used at any time.
constexpr uint64_t kUnknownUse = ~uint64_t{0};

/// Counters in bytes or events since start (or since their reset).
struct MemoryStatistics {
  struct Gauge {
    int64_t current = 0, peak = 0, total_allocated = 0, total_freed = 0;
  };
  Gauge allocated, reserved, active, cached;
  int64_t num_alloc_retries = 0, num_ooms = 0, num_device_alloc = 0, num_device_free = 0;
};

/// How the allocator behaves; the meanings are those of PYTORCH_ALLOC_CONF.
struct AllocatorOptions {
  uint64_t max_split_size = ~uint64_t{0};       ///< bytes; larger blocks are never cut
  uint64_t max_non_split_rounding = 20u << 20;  ///< bytes a block too large to be cut may exceed a request by
  uint64_t large_segment = 20u << 20;           ///< bytes of a segment that blocks of 1 MiB to half of it share
  double garbage_collection_threshold = 0;      ///< of the limit: above it free segments are returned first; 0: off
  std::array<uint64_t, 16> roundup_power2_divisions{};  ///< by power of two from 1 MiB: steps per octave; 0: exact
};

/// One piece of a segment, in order of address.
struct BlockInfo {
  enum State { kFree, kActive, kWaiting } state = kFree;  ///< kWaiting: freed, but other streams are not done with it
  ob_ptr ptr = 0;
  uint64_t size = 0, requested = 0;
  MemoryContext context;  ///< of kActive, if it was kept
};

/// Memory got from the driver in one piece.
struct SegmentInfo {
  int64_t stream = 0;
  uint64_t pool = 0;  ///< id of the MemoryPool; 0: of no pool
  bool small = false;
  std::vector<BlockInfo> blocks;
};

/// Something that happened to memory.
struct TraceEntry {
  enum Action { kAlloc, kFree, kSegmentAlloc, kSegmentFree, kOutOfMemory } action = kAlloc;
  ob_ptr ptr = 0;
  uint64_t size = 0;
  int64_t stream = 0;
  int64_t time_us = 0;  ///< since 1970
  MemoryContext context;
};

/// Device memory with reuse: blocks freed on a stream are reused on that stream without synchronising.
/// Power-of-two-ish size classes, best fit, split and coalesce. When the device is full, cached memory goes back to the
/// driver (that of pools, too). Thread-safe, under the device's memory lock.
class CachingAllocator {
 public:
  /// Whether somebody asks for the first time, or again because allocations have moved out of the device's memory.
  enum class Attempt : uint8_t { kFirst, kAfterMoves };

  explicit CachingAllocator(Device& device);

  /// What is cached or the driver has; nullptr if that is not enough for so many bytes, which are not 0. Throws
  /// OutOfMemoryError for more than there could ever be. `pool`: whose memory it is to be. (See Residency::allocate.)
  Block* try_allocate(uint64_t bytes, Stream& stream, const MemoryPoolPointer& pool, Attempt attempt);
  /// Throws OutOfMemoryError whose text names sizes and advice, for who asked in vain.
  [[noreturn]] void refuse(uint64_t bytes);
  /// `last_use` is the number of the last Work of the block's own stream that used it, if that is known.
  void free(Block* block, uint64_t last_use = kUnknownUse) noexcept;
  /// The block is also used by work on `stream`: it is reused only when that work is finished. True the first time.
  bool record_stream(Block* block, Stream& stream);
  /// The streams recorded, and forgetting them: for a caller that has made the block's own stream wait for them.
  const std::vector<Stream*>& other_streams(const Block* block) const;
  void forget_other_streams(Block* block);
  /// Returns cached memory to the driver, of pools too if they are gone or the calling thread allocates for them.
  void empty_cache();
  /// Tells the driver how many bytes will be needed soon; it may make them ready meanwhile. They are not reserved.
  void expect(uint64_t bytes);
  MemoryStatistics statistics() const;
  void reset_peak();
  void reset_accumulated();
  /// Bytes the allocator may hold (OUTBOARD_MEMORY_LIMIT, or the device's memory).
  uint64_t limit() const;
  /// Whether so much more could be used without moving anything else.
  bool has_room(uint64_t bytes) const;
  void set_limit(uint64_t bytes);
  void set_options(const AllocatorOptions& options);

  std::vector<SegmentInfo> segments() const;
  /// Keeps the last `entries` events from now on; 0 keeps none. With the contexts that `keep_contexts` asks for.
  void record_history(size_t entries);
  void clear_history();
  std::vector<TraceEntry> history() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace outboard
