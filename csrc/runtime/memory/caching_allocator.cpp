// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/caching_allocator.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/driver_call.h"
#include "runtime/device.h"
#include "runtime/memory/work_order.h"

namespace outboard {
namespace {

constexpr uint64_t kRounding = 512;
constexpr uint64_t kSmallLimit = uint64_t{1} << 19;  // blocks up to this share small segments
constexpr uint64_t kSmallSegment = uint64_t{2} << 20;
constexpr uint64_t kLargeRounding = uint64_t{2} << 20;
constexpr uint64_t kSegmentsInAll = 16;              // what blocks share is about this part of what is reserved
constexpr uint64_t kHugeBlock = uint64_t{20} << 20;  // blocks of this size are not cut for much smaller requests

constexpr uint64_t kUncollected = uint64_t{32} << 20;  // below this, returning memory is not worth waiting for
constexpr uint64_t kToleratedPercent = 108;

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

std::string mebibytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

void raise(MemoryStatistics::Gauge& gauge, uint64_t bytes) {
  gauge.current += static_cast<int64_t>(bytes);
  gauge.total_allocated += static_cast<int64_t>(bytes);
  gauge.peak = std::max(gauge.peak, gauge.current);
}

void lower(MemoryStatistics::Gauge& gauge, uint64_t bytes) {
  gauge.current -= static_cast<int64_t>(bytes);
  gauge.total_freed += static_cast<int64_t>(bytes);
}

struct Pool;

/// A block with what only the allocator knows: its neighbours in the segment, its place in a free list, its users.
struct Node : Block {
  Node* previous = nullptr;
  Node* next = nullptr;
  Node* free_previous = nullptr;
  Node* free_next = nullptr;
  Stream* stream = nullptr;
  Pool* pool = nullptr;
  bool free = false;
  bool small = false;
  std::vector<Stream*> other_streams;
  MemoryContext context;  // of the block's owner
};

/// Free blocks by size. Sizes up to 2 MiB have a list each; above, 32 lists share an octave. A bitmap of non-empty
/// lists finds the smallest block that is large enough without a search.
class FreeList {
 public:
  void insert(Node* node) {
    const size_t bin = bin_of(node->size);
    node->free_previous = nullptr;
    node->free_next = bins_[bin];
    if (node->free_next != nullptr) node->free_next->free_previous = node;
    bins_[bin] = node;
    mark(bin);
  }

  void erase(Node* node) {
    const size_t bin = bin_of(node->size);
    if (node->free_next != nullptr) node->free_next->free_previous = node->free_previous;
    if (node->free_previous != nullptr) node->free_previous->free_next = node->free_next;
    if (node->free_previous == nullptr) bins_[bin] = node->free_next;
    if (bins_[bin] == nullptr) unmark(bin);
  }

  /// The smallest block of at least `size` bytes, or nullptr.
  Node* best(uint64_t size) const {
    const size_t first = bin_of(size);
    for (size_t bin = next_marked(first); bin < kBins; bin = next_marked(bin + 1)) {
      Node* node = smallest(bin, size);
      if (node != nullptr) return node;
    }
    return nullptr;
  }

  template <typename Function>
  void for_each(Function&& function) const {
    for (size_t bin = next_marked(0); bin < kBins; bin = next_marked(bin + 1)) {
      for (Node* node = bins_[bin]; node != nullptr;) {
        Node* next = node->free_next;  // `function` may remove the node
        function(node);
        node = next;
      }
    }
  }

 private:
  static constexpr size_t kExact = (uint64_t{2} << 20) / kRounding;  // 2^12
  static constexpr int kSubdivision = 5;
  static constexpr size_t kBins = kExact + 32 * (52 - 12);
  static constexpr size_t kWords = (kBins + 63) / 64;
  static constexpr size_t kSummary = (kWords + 63) / 64;

  static size_t bin_of(uint64_t size) {
    const uint64_t units = size / kRounding;
    if (units < kExact) return units;
    const int octave = 63 - __builtin_clzll(units);
    const uint64_t within = (units >> (octave - kSubdivision)) - (uint64_t{1} << kSubdivision);
    return std::min(kBins - 1, kExact + (static_cast<size_t>(octave - 12) << kSubdivision) + within);
  }

  Node* smallest(size_t bin, uint64_t size) const {
    if (bin < kExact) return bins_[bin];
    Node* best = nullptr;
    for (Node* node = bins_[bin]; node != nullptr; node = node->free_next) {
      if (node->size < size || (best != nullptr && best->size <= node->size)) continue;
      best = node;
      if (node->size == size) break;
    }
    return best;
  }

  void mark(size_t bin) {
    words_[bin / 64] |= uint64_t{1} << (bin % 64);
    summary_[bin / 64 / 64] |= uint64_t{1} << (bin / 64 % 64);
  }

  void unmark(size_t bin) {
    words_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
    if (words_[bin / 64] == 0) summary_[bin / 64 / 64] &= ~(uint64_t{1} << (bin / 64 % 64));
  }

  /// The first non-empty list from `bin` on, or kBins.
  size_t next_marked(size_t bin) const {
    if (bin >= kBins) return kBins;
    size_t word = bin / 64;
    const uint64_t here = words_[word] & (~uint64_t{0} << (bin % 64));
    if (here != 0) return word * 64 + static_cast<size_t>(__builtin_ctzll(here));
    ++word;
    for (size_t group = word / 64; group < kSummary; ++group) {
      const uint64_t above = group == word / 64 ? ~uint64_t{0} << (word % 64) : ~uint64_t{0};
      const uint64_t words = summary_[group] & above;
      if (words == 0) continue;
      const size_t found = group * 64 + static_cast<size_t>(__builtin_ctzll(words));
      return found * 64 + static_cast<size_t>(__builtin_ctzll(words_[found]));
    }
    return kBins;
  }

  Node* bins_[kBins] = {};
  uint64_t words_[kWords] = {};
  uint64_t summary_[kSummary] = {};
};

/// Free memory of one stream, and of one MemoryPool if it is made for one: blocks up to 1 MiB come from segments of
/// their own.
struct Pool {
  FreeList small, large;
  uint64_t id = 0;  // of the MemoryPool; 0: none
  std::weak_ptr<const MemoryPool> owner;
  size_t segments = 0;
};

/// Whose memory goes back to the driver: where nothing lacks, pools keep theirs.
enum class Release { kUnowned, kAll };

/// A freed block that other streams may still be using: reusable once every event is reached.
struct Waiting {
  Node* node;
  std::vector<std::pair<const Stream*, std::unique_ptr<Event>>> events;
};

}  // namespace

struct CachingAllocator::Impl {
  explicit Impl(Device& device_)
      : device(device_), lock(device_.order().lock()), limit(device_.properties().total_memory) {}

  Node* allocate(uint64_t bytes, Stream& stream, const MemoryPoolPointer& owner, Attempt attempt) {
    if (bytes > std::min(limit, largest())) refuse(bytes);  // also keeps the rounding below from overflowing
    const uint64_t size = std::min(rounded(bytes), std::max(bytes, largest()));
    Pool& from = owner == nullptr ? pool(stream) : pool(stream, owner);
    Node* node = nullptr;
    if (attempt == Attempt::kFirst) {
      if (!waiting.empty()) reclaim();
      node = reuse(size, from);
      if (node == nullptr) node = grow(size, from, stream);
      if (node == nullptr) {
        ++statistics.num_alloc_retries;
        drivers_refusal.clear();
      }
    }
    if (node == nullptr) node = squeeze(size, from, stream);
    if (node == nullptr) return nullptr;
    split(node, size);
    node->requested = bytes;
    if (kept_contexts() >= Contexts::kState) node->context = current_memory_context();
    raise(statistics.allocated, bytes);
    raise(statistics.active, node->size);
    lower(statistics.cached, node->size);
    trace(TraceEntry::kAlloc, node->ptr, node->size, stream);
    return node;
  }

  uint64_t rounded(uint64_t bytes) const {
    const uint64_t size = round_up(bytes, kRounding);
    const int octave = 63 - __builtin_clzll(size);
    const uint64_t divisions = options.roundup_power2_divisions[static_cast<size_t>(std::clamp(octave - 20, 0, 15))];
    if (divisions <= 1 || size <= kRounding * divisions) return size;
    return std::min(round_up(size, (uint64_t{1} << octave) / divisions), std::max(size, limit));
  }

  Pool& pool(const Stream& stream) {
    const auto id = static_cast<size_t>(stream.id());
    if (pools.size() <= id) pools.resize(id + 1);
    if (pools[id] == nullptr) pools[id] = std::make_unique<Pool>();
    return *pools[id];
  }

  Pool& pool(const Stream& stream, const MemoryPoolPointer& owner) {
    std::unique_ptr<Pool>& found = owned_pools[{owner->id(), stream.id()}];
    if (found == nullptr) {
      found = std::make_unique<Pool>();
      found->id = owner->id();
      found->owner = owner;
    }
    return *found;
  }

  static FreeList& free_list(const Node& node) { return node.small ? node.pool->small : node.pool->large; }

  /// A cached block of the pool, or nullptr. `frugal` keeps a huge block whole for a huge request rather than cutting
  /// it for a much smaller one.
  Node* reuse(uint64_t size, Pool& from, bool frugal = true) {
    const bool small = size <= kSmallLimit;
    Node* node = (small ? from.small : from.large).best(size);
    if (node == nullptr) return nullptr;
    const bool wasteful = node->size > 2 * size && node->size - size > 4 * kHugeBlock;
    if (frugal && wasteful && size > kHugeBlock) return nullptr;
    if (!divisible(*node) && node->size > size && size <= options.max_split_size) return nullptr;
    if (!divisible(*node) && node->size - size > options.max_non_split_rounding) return nullptr;
    take_from_free_list(node);
    return node;
  }

  bool divisible(const Node& node) const { return node.small || node.size <= options.max_split_size; }

  /// Segments that blocks share grow with what is reserved: a hole in one costs a sixteenth of the memory at most.
  uint64_t segment_for(uint64_t size) const {
    if (size <= kSmallLimit) return kSmallSegment;
    if (size >= options.large_segment / 2) return round_up(size, kLargeRounding);
    const uint64_t share = std::min(reserved() / kSegmentsInAll, options.large_segment);
    return std::max(round_up(share, kLargeRounding), round_up(2 * size, kLargeRounding));
  }

  /// Bytes that may be reserved before free segments which a request cannot use are returned: somewhat more than were
  /// ever in use. Otherwise work of varying sizes would leave a segment of each behind.
  uint64_t tolerated(uint64_t size) const {
    const int64_t in_use = std::max(statistics.active.peak, statistics.active.current + static_cast<int64_t>(size));
    return std::max(kUncollected, static_cast<uint64_t>(in_use) / 100 * kToleratedPercent);
  }

  /// New memory from the driver, or nullptr if the limit or the device says no.
  Node* grow(uint64_t size, Pool& to, Stream& stream) {
    uint64_t segment = segment_for(size);
    const auto threshold = static_cast<uint64_t>(options.garbage_collection_threshold * static_cast<double>(limit));
    if (threshold > segment && reserved() + segment > threshold) release_until(threshold - segment);
    if (reserved() + segment > tolerated(size)) release_until(tolerated(size) - std::min(tolerated(size), segment));
    // Then a hole in a segment is worse than a segment of its own.
    if (reserved() + segment > tolerated(size)) segment = std::min(segment, round_up(size, kLargeRounding));
    if (reserved() + segment > limit || segment > largest()) segment = size;  // the exact size may still fit
    if (reserved() + segment > limit) return nullptr;
    auto node = std::make_unique<Node>();
    const ob_status status = device.driver().memory_alloc(device.handle(), segment, &node->ptr);
    if (status == OB_OUT_OF_MEMORY) {
      const char* text = device.driver().last_error();
      drivers_refusal = text != nullptr ? text : "no details";
      return nullptr;
    }
    check(device.driver(), status, "allocating device memory");
    node->size = segment;
    node->stream = &stream;
    node->pool = &to;
    node->small = size <= kSmallLimit;
    segments.emplace(node->ptr, node.get());
    ++to.segments;
    ++statistics.num_device_alloc;
    raise(statistics.reserved, segment);
    raise(statistics.cached, segment);
    trace(TraceEntry::kSegmentAlloc, node->ptr, segment, stream);
    return node.release();
  }

  /// Under pressure: waits for blocks that other streams use, and returns cached segments to the driver.
  Node* squeeze(uint64_t size, Pool& from, Stream& stream) {
    reclaim_all(&stream);
    if (Node* node = reuse(size, from, /*frugal=*/false)) return node;
    release_until(limit - std::min(size, limit), Release::kAll);
    if (Node* node = grow(size, from, stream)) return node;
    release_until(0, Release::kAll);  // the device has less than the limit says
    return grow(size, from, stream);
  }

  [[noreturn]] void refuse(uint64_t bytes) {
    ++statistics.num_ooms;
    trace(TraceEntry::kOutOfMemory, 0, bytes, device.default_stream());
    throw OutOfMemoryError("out of memory on device " + std::to_string(device.index()) + ": tried to allocate " +
                           mebibytes(bytes) + "; " + mebibytes(static_cast<uint64_t>(statistics.allocated.current)) +
                           " are in use by tensors and " + mebibytes(reserved()) + " are reserved. " + reason(bytes));
  }

  /// Which limit a request met, and what to do about it.
  std::string reason(uint64_t bytes) const {
    if (bytes > largest()) {
      return "The device allows " + mebibytes(largest()) +
             " in one allocation (max_allocation of its properties): use smaller tensors.";
    }
    if (bytes > limit) return "That is more than " + limit_in_words() + ".";
    if (statistics.active.current > 0) {
      return "What is in use cannot move to the host, because the same operation needs it or it is pinned, and the "
             "rest "
             "of " +
             limit_in_words() + " is too small: use smaller batches, or free or unpin tensors." +
             (drivers_refusal.empty() ? "" : " The driver says: " + drivers_refusal);
    }
    if (!drivers_refusal.empty()) return "The driver refused, within " + limit_in_words() + ": " + drivers_refusal;
    return "Captured graphs keep what is reserved, and the rest of " + limit_in_words() + " is too small.";
  }

  std::string limit_in_words() const {
    const uint64_t all = device.properties().total_memory;
    if (limit >= all) return "the device's memory (" + mebibytes(all) + ")";
    return "the limit of " + mebibytes(limit) +
           " set by OUTBOARD_MEMORY_LIMIT or set_per_process_memory_fraction (the device has " + mebibytes(all) + ")";
  }

  /// Bytes that one allocation may have.
  uint64_t largest() const {
    const uint64_t told = device.properties().max_allocation;
    return told != 0 ? told / kRounding * kRounding : UINT64_MAX;
  }

  uint64_t reserved() const { return static_cast<uint64_t>(statistics.reserved.current); }

  void split(Node* node, uint64_t size) {
    const uint64_t rest = node->size - size;
    if (rest < (node->small ? kRounding : kSmallLimit) || !divisible(*node)) return;
    Node* tail = new_node();
    tail->ptr = node->ptr + size;
    tail->size = rest;
    tail->stream = node->stream;
    tail->pool = node->pool;
    tail->small = node->small;
    tail->last_use = node->last_use;
    tail->previous = node;
    tail->next = node->next;
    if (tail->next != nullptr) tail->next->previous = tail;
    node->next = tail;
    node->size = size;
    offer(tail);
  }

  void free(Node* node, uint64_t last_use) noexcept {
    node->last_use = last_use;
    node->context = nullptr;
    lower(statistics.allocated, node->requested);
    trace(TraceEntry::kFree, node->ptr, node->size, *node->stream);
    if (node->other_streams.empty()) return put_back(node);
    try {
      Waiting entry{node, {}};
      for (Stream* stream : node->other_streams) {
        entry.events.emplace_back(stream, std::make_unique<Event>(device));
        entry.events.back().second->record(*stream);
      }
      node->other_streams.clear();
      waiting.push_back(std::move(entry));
    } catch (const std::exception&) {
      free_after_failure(node);
    }
  }

  /// The driver could not mark where the other streams are: wait for them. If even that fails the device is beyond
  /// use, and the block is never reused, because nobody can tell what still writes to it.
  void free_after_failure(Node* node) noexcept {
    for (Stream* stream : node->other_streams) {
      if (!stream->finish_in_the_end()) return;
    }
    node->other_streams.clear();
    put_back(node);
  }

  /// Makes a block reusable on its stream, joined with free neighbours.
  void put_back(Node* node) {
    lower(statistics.active, node->size);
    raise(statistics.cached, node->size);
    if (node->next != nullptr && node->next->free) {
      take_from_free_list(node->next);
      absorb_next(node);
    }
    if (node->previous != nullptr && node->previous->free) {
      node = node->previous;
      take_from_free_list(node);
      absorb_next(node);
    }
    offer(node);
  }

  void offer(Node* node) {
    node->free = true;
    free_list(*node).insert(node);
  }

  void take_from_free_list(Node* node) {
    free_list(*node).erase(node);
    node->free = false;
  }

  /// Makes `left` one block with its right neighbour.
  void absorb_next(Node* left) {
    Node* right = left->next;
    left->size += right->size;
    left->last_use = std::max(left->last_use, right->last_use);
    left->next = right->next;
    if (left->next != nullptr) left->next->previous = left;
    right->free_next = spare;
    spare = right;
  }

  /// A node for a new block: a spare one, as splitting and joining go on all the time.
  Node* new_node() {
    if (spare == nullptr) return new Node;
    Node* node = spare;
    spare = node->free_next;
    node->requested = 0;
    node->free = false;
    return node;
  }

  /// Takes back blocks whose other streams are done, oldest first.
  void reclaim() {
    while (!waiting.empty()) {
      for (const auto& [stream, event] : waiting.front().events) {
        if (!event->surely_reached()) return;
      }
      reclaim_oldest();
    }
  }

  /// Takes back all blocks. For those of `stream`, which is about to reuse them, the stream waits; for the others, the
  /// host does.
  void reclaim_all(const Stream* stream) {
    while (!waiting.empty()) {
      Node* node = waiting.front().node;
      for (const auto& [user, event] : waiting.front().events) {
        if (node->stream != stream) {
          event->finish_in_the_end();
          continue;
        }
        node->stream->wait(*event);
        // From now on the other stream's use is one of its own stream's, and a late one. Moves alone need not know:
        // they are in order among themselves.
        if (user != device.transfer_stream()) node->last_use = kUnknownUse;
      }
      reclaim_oldest();
    }
  }

  void reclaim_oldest() {
    Node* node = waiting.front().node;
    waiting.pop_front();
    put_back(node);
  }

  /// Returns whole free segments to the driver until at most `bytes` are reserved. Queued work may use what was freed:
  /// each segment's stream has to become idle.
  void release_until(uint64_t bytes, Release whose = Release::kUnowned) {
    for (const std::unique_ptr<Pool>& own : pools) {
      if (own != nullptr) release_from(*own, bytes);
    }
    for (auto entry = owned_pools.begin(); entry != owned_pools.end();) {
      Pool& owned = *entry->second;
      const bool is_orphan = owned.owner.expired();
      if (is_orphan || whose == Release::kAll) release_from(owned, bytes);
      entry = is_orphan && owned.segments == 0 ? owned_pools.erase(entry) : std::next(entry);
    }
  }

  void release_from(Pool& pool, uint64_t bytes) {
    for (FreeList* list : {&pool.small, &pool.large}) {
      list->for_each([&](Node* node) {
        const bool whole = node->previous == nullptr && node->next == nullptr;
        if (reserved() > bytes && whole && !node->stream->keeps_memory()) release_segment(*list, node);
      });
    }
  }

  /// Returns what a MemoryPool has cached.
  void release(const MemoryPool& owner) {
    for (const auto& [key, owned] : owned_pools) {
      if (key.first == owner.id()) release_from(*owned, 0);
    }
  }

  void release_segment(FreeList& list, Node* node) {
    device.order().wait_for(*node->stream, node->last_use);
    check(device.driver(), device.driver().memory_free(device.handle(), node->ptr), "freeing device memory");
    ++statistics.num_device_free;
    lower(statistics.reserved, node->size);
    lower(statistics.cached, node->size);
    trace(TraceEntry::kSegmentFree, node->ptr, node->size, *node->stream);
    segments.erase(node->ptr);
    list.erase(node);
    --node->pool->segments;
    delete node;
  }

  void trace(TraceEntry::Action action, ob_ptr ptr, uint64_t size, const Stream& stream) noexcept {
    if (history_length == 0) return;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto time = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
    if (history.size() >= history_length) history.pop_front();
    const Contexts least = action == TraceEntry::kFree ? Contexts::kAll : Contexts::kAlloc;
    history.push_back(
        {action, ptr, size, stream.id(), time, kept_contexts() >= least ? current_memory_context() : nullptr});
  }

  SegmentInfo describe(const Node* first) const {
    SegmentInfo segment{first->stream->id(), first->pool->id, first->small, {}};
    for (const Node* node = first; node != nullptr; node = node->next) {
      const bool waits = std::any_of(waiting.begin(), waiting.end(), [&](const Waiting& w) { return w.node == node; });
      const BlockInfo::State state = node->free ? BlockInfo::kFree : waits ? BlockInfo::kWaiting : BlockInfo::kActive;
      segment.blocks.push_back({state, node->ptr, node->size, node->free ? 0 : node->requested,
                                state == BlockInfo::kActive ? node->context : nullptr});
    }
    return segment;
  }

  Device& device;
  MemoryLock& lock;
  std::vector<std::unique_ptr<Pool>> pools;                                   // by stream id
  std::map<std::pair<uint64_t, int64_t>, std::unique_ptr<Pool>> owned_pools;  // by ids of MemoryPool and stream
  std::map<ob_ptr, const Node*> segments;                                     // the first block of each
  std::deque<Waiting> waiting;
  Node* spare = nullptr;
  MemoryStatistics statistics;
  uint64_t limit;
  std::string drivers_refusal;  // since the last request that did not fit; empty: none
  AllocatorOptions options;
  std::deque<TraceEntry> history;
  size_t history_length = 0;
};

CachingAllocator::CachingAllocator(Device& device) : impl_(std::make_shared<Impl>(device)) {}

Block* CachingAllocator::try_allocate(uint64_t bytes, Stream& stream, const MemoryPoolPointer& pool, Attempt attempt) {
  const std::lock_guard guard(impl_->lock);
  return impl_->allocate(bytes, stream, pool, attempt);
}

void CachingAllocator::refuse(uint64_t bytes) {
  const std::lock_guard guard(impl_->lock);
  impl_->refuse(bytes);
}

void CachingAllocator::free(Block* block, uint64_t last_use) noexcept {
  if (block == nullptr || in_forked_child.load(std::memory_order_relaxed)) return;
  const MemoryScope scope(impl_->lock, Contexts::kAll);
  const std::lock_guard guard(impl_->lock);
  impl_->free(static_cast<Node*>(block), last_use);
}

bool CachingAllocator::record_stream(Block* block, Stream& stream) {
  if (block == nullptr) return false;
  const std::lock_guard guard(impl_->lock);
  auto* node = static_cast<Node*>(block);
  std::vector<Stream*>& others = node->other_streams;
  const bool known = node->stream == &stream || std::find(others.begin(), others.end(), &stream) != others.end();
  if (!known) others.push_back(&stream);
  return !known;
}

const std::vector<Stream*>& CachingAllocator::other_streams(const Block* block) const {
  return static_cast<const Node*>(block)->other_streams;
}

void CachingAllocator::forget_other_streams(Block* block) {
  const std::lock_guard guard(impl_->lock);
  static_cast<Node*>(block)->other_streams.clear();
}

void CachingAllocator::empty_cache() {
  refuse_in_forked_child();
  const std::lock_guard guard(impl_->lock);
  impl_->reclaim_all(nullptr);
  impl_->release_until(0);
  if (const MemoryPoolPointer pool = current_memory_pool(impl_->device.index())) impl_->release(*pool);
}

void CachingAllocator::expect(uint64_t bytes) {
  refuse_in_forked_child();
  const DeviceDriver& driver = impl_->device.driver();
  if (driver.memory_expect == nullptr) return;
  check(driver, driver.memory_expect(impl_->device.handle(), std::min(bytes, limit())), "making device memory ready");
}

MemoryStatistics CachingAllocator::statistics() const {
  const std::lock_guard guard(impl_->lock);
  return impl_->statistics;
}

void CachingAllocator::reset_peak() {
  const std::lock_guard guard(impl_->lock);
  MemoryStatistics& s = impl_->statistics;
  for (MemoryStatistics::Gauge* gauge : {&s.allocated, &s.reserved, &s.active, &s.cached}) gauge->peak = gauge->current;
}

void CachingAllocator::reset_accumulated() {
  const std::lock_guard guard(impl_->lock);
  MemoryStatistics& s = impl_->statistics;
  for (MemoryStatistics::Gauge* gauge : {&s.allocated, &s.reserved, &s.active, &s.cached}) {
    gauge->total_allocated = gauge->total_freed = 0;
  }
  s.num_alloc_retries = s.num_ooms = s.num_device_alloc = s.num_device_free = 0;
}

uint64_t CachingAllocator::limit() const {
  const std::lock_guard guard(impl_->lock);
  return impl_->limit;
}

bool CachingAllocator::has_room(uint64_t bytes) const {
  const std::lock_guard guard(impl_->lock);
  const uint64_t limit = impl_->limit, used = static_cast<uint64_t>(impl_->statistics.active.current);
  return used < limit && bytes <= limit - used;
}

void CachingAllocator::set_limit(uint64_t bytes) {
  const std::lock_guard guard(impl_->lock);
  impl_->limit = bytes;
}

void CachingAllocator::set_options(const AllocatorOptions& options) {
  const std::lock_guard guard(impl_->lock);
  impl_->options = options;
}

std::vector<SegmentInfo> CachingAllocator::segments() const {
  const std::lock_guard guard(impl_->lock);
  std::vector<SegmentInfo> all;
  for (const auto& [ptr, first] : impl_->segments) all.push_back(impl_->describe(first));
  return all;
}

void CachingAllocator::record_history(size_t entries) {
  const std::lock_guard guard(impl_->lock);
  impl_->history_length = entries;
  while (impl_->history.size() > entries) impl_->history.pop_front();
}

void CachingAllocator::clear_history() {
  const std::lock_guard guard(impl_->lock);
  impl_->history.clear();
}

std::vector<TraceEntry> CachingAllocator::history() const {
  const std::lock_guard guard(impl_->lock);
  return {impl_->history.begin(), impl_->history.end()};
}

}  // namespace outboard
