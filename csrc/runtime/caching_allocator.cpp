// SPDX-License-Identifier: Apache-2.0
#include "runtime/caching_allocator.h"

#include <algorithm>
#include <cstdio>
#include <list>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/device.h"
#include "runtime/driver_call.h"

namespace outboard {
namespace {

constexpr uint64_t kRounding = 512;
constexpr uint64_t kSmallLimit = uint64_t{1} << 20;  // blocks up to this share small segments
constexpr uint64_t kSmallSegment = uint64_t{2} << 20;
constexpr uint64_t kLargeRounding = uint64_t{2} << 20;
constexpr uint64_t kMediumSegment = uint64_t{20} << 20;  // large blocks up to half of this share segments

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

}  // namespace

struct CachingAllocator::Impl {
  /// A block with what only the allocator knows: its neighbours in the segment and who uses it.
  struct Node : Block {
    Node* previous = nullptr;
    Node* next = nullptr;
    Stream* stream = nullptr;
    bool free = false;
    bool small = false;
    std::unordered_set<Stream*> other_streams;
  };

  struct BySize {
    bool operator()(const Node* a, const Node* b) const {
      return a->size != b->size ? a->size < b->size : a->ptr < b->ptr;
    }
  };

  using Free = std::set<Node*, BySize>;

  struct Pool {
    Free small, large;
  };

  /// A freed block that other streams may still be using: reusable once every event is reached.
  struct Waiting {
    Node* node;
    std::vector<std::unique_ptr<Event>> events;
  };

  explicit Impl(Device& device_) : device(device_) { limit = device.properties().total_memory; }

  Node* allocate(uint64_t bytes, Stream& stream) {
    const uint64_t size = round_up(bytes, kRounding);
    reclaim(false);
    Node* node = reuse(size, stream);
    if (node == nullptr) node = grow(size, stream);
    if (node == nullptr) node = retry(size, bytes, stream);
    split(node, size);
    node->requested = bytes;
    raise(statistics.allocated, bytes);
    raise(statistics.active, node->size);
    lower(statistics.cached, node->size);
    return node;
  }

  Free& free_list(const Node& node) {
    Pool& pool = pools[node.stream];
    return node.small ? pool.small : pool.large;
  }

  Node* reuse(uint64_t size, Stream& stream) {
    const bool small = size <= kSmallLimit;
    Pool& pool = pools[&stream];
    Free& free = small ? pool.small : pool.large;
    Node key;
    key.size = size;
    const auto best = free.lower_bound(&key);
    if (best == free.end()) return nullptr;
    Node* node = *best;
    // A huge block is kept whole for a huge request rather than cut for a much smaller one.
    if (!small && node->size > 2 * size && node->size - size > 4 * kMediumSegment && size > kMediumSegment)
      return nullptr;
    take_from_free_list(node);
    return node;
  }

  /// New memory from the driver, or nullptr if the limit or the device says no.
  Node* grow(uint64_t size, Stream& stream) {
    const bool small = size <= kSmallLimit;
    uint64_t segment = small                       ? kSmallSegment
                       : size < kMediumSegment / 2 ? kMediumSegment
                                                   : round_up(size, kLargeRounding);
    if (reserved() + segment > limit) segment = round_up(size, kRounding);  // the exact size may still fit
    if (reserved() + segment > limit) return nullptr;
    ob_ptr ptr = 0;
    const ob_status status = device.driver().memory_alloc(device.handle(), segment, &ptr);
    if (status == OB_OUT_OF_MEMORY) return nullptr;
    check(device.driver(), status, "allocating device memory");
    auto* node = new Node;
    node->ptr = ptr;
    node->size = segment;
    node->stream = &stream;
    node->small = small;
    ++statistics.num_device_alloc;
    raise(statistics.reserved, segment);
    raise(statistics.cached, segment);
    return node;
  }

  Node* retry(uint64_t size, uint64_t bytes, Stream& stream) {
    ++statistics.num_alloc_retries;
    reclaim(true);
    release_cached();
    Node* node = reuse(size, stream);
    if (node == nullptr) node = grow(size, stream);
    if (node != nullptr) return node;
    ++statistics.num_ooms;
    throw OutOfMemoryError("out of memory on device " + std::to_string(device.index()) + ": tried to allocate " +
                           mebibytes(bytes) + ", " + mebibytes(static_cast<uint64_t>(statistics.allocated.current)) +
                           " are in use by tensors and " + mebibytes(reserved()) + " are reserved, of " +
                           mebibytes(limit) +
                           " in all. Use smaller batches, free tensors, or raise "
                           "OUTBOARD_MEMORY_LIMIT if it is set.");
  }

  uint64_t reserved() const { return static_cast<uint64_t>(statistics.reserved.current); }

  void split(Node* node, uint64_t size) {
    const uint64_t rest = node->size - size;
    if (rest < (node->small ? kRounding : kSmallLimit)) return;
    auto* tail = new Node;
    tail->ptr = node->ptr + size;
    tail->size = rest;
    tail->stream = node->stream;
    tail->small = node->small;
    tail->previous = node;
    tail->next = node->next;
    if (tail->next != nullptr) tail->next->previous = tail;
    node->next = tail;
    node->size = size;
    offer(tail);
  }

  void free(Node* node) {
    lower(statistics.allocated, node->requested);
    if (node->other_streams.empty()) return put_back(node);
    Waiting waiting{node, {}};
    for (Stream* stream : node->other_streams) {
      waiting.events.push_back(std::make_unique<Event>(device));
      waiting.events.back()->record(*stream);
    }
    node->other_streams.clear();
    pending.push_back(std::move(waiting));
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
  static void absorb_next(Node* left) {
    Node* right = left->next;
    left->size += right->size;
    left->next = right->next;
    if (left->next != nullptr) left->next->previous = left;
    delete right;
  }

  /// Takes back blocks whose other streams are done; with `wait`, all of them.
  void reclaim(bool wait) {
    for (auto it = pending.begin(); it != pending.end();) {
      const bool done = std::all_of(it->events.begin(), it->events.end(), [&](const std::unique_ptr<Event>& event) {
        if (wait) event->synchronize();
        return event->query();
      });
      if (!done) {
        ++it;
        continue;
      }
      Node* node = it->node;
      it = pending.erase(it);
      put_back(node);
    }
  }

  /// Returns whole free segments to the driver. The device is idle first: queued work may use what was freed.
  void release_cached() {
    for (auto& [stream, pool] : pools) {
      for (Free* free : {&pool.small, &pool.large}) {
        for (auto it = free->begin(); it != free->end();) {
          Node* node = *it;
          if (node->previous != nullptr || node->next != nullptr) {
            ++it;
            continue;
          }
          stream->synchronize();
          check(device.driver(), device.driver().memory_free(device.handle(), node->ptr), "freeing device memory");
          ++statistics.num_device_free;
          lower(statistics.reserved, node->size);
          lower(statistics.cached, node->size);
          it = free->erase(it);
          delete node;
        }
      }
    }
  }

  Device& device;
  std::mutex mutex;
  std::unordered_map<Stream*, Pool> pools;
  std::list<Waiting> pending;
  MemoryStatistics statistics;
  uint64_t limit = 0;
};

CachingAllocator::CachingAllocator(Device& device) : impl_(std::make_shared<Impl>(device)) {}

Block* CachingAllocator::allocate(uint64_t bytes, Stream& stream) {
  if (bytes == 0) return nullptr;
  std::lock_guard lock(impl_->mutex);
  return impl_->allocate(bytes, stream);
}

void CachingAllocator::free(Block* block) noexcept {
  if (block == nullptr) return;
  std::lock_guard lock(impl_->mutex);
  impl_->free(static_cast<Impl::Node*>(block));
}

void CachingAllocator::record_stream(Block* block, Stream& stream) {
  if (block == nullptr) return;
  std::lock_guard lock(impl_->mutex);
  auto* node = static_cast<Impl::Node*>(block);
  if (node->stream != &stream) node->other_streams.insert(&stream);
}

void CachingAllocator::empty_cache() {
  std::lock_guard lock(impl_->mutex);
  impl_->reclaim(true);
  impl_->release_cached();
}

MemoryStatistics CachingAllocator::statistics() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->statistics;
}

void CachingAllocator::reset_peak() {
  std::lock_guard lock(impl_->mutex);
  MemoryStatistics& s = impl_->statistics;
  for (MemoryStatistics::Gauge* gauge : {&s.allocated, &s.reserved, &s.active, &s.cached}) gauge->peak = gauge->current;
}

void CachingAllocator::reset_accumulated() {
  std::lock_guard lock(impl_->mutex);
  MemoryStatistics& s = impl_->statistics;
  for (MemoryStatistics::Gauge* gauge : {&s.allocated, &s.reserved, &s.active, &s.cached}) {
    gauge->total_allocated = gauge->total_freed = 0;
  }
  s.num_alloc_retries = s.num_ooms = s.num_device_alloc = s.num_device_free = 0;
}

uint64_t CachingAllocator::limit() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->limit;
}

void CachingAllocator::set_limit(uint64_t bytes) {
  std::lock_guard lock(impl_->mutex);
  impl_->limit = bytes;
}

}  // namespace outboard
