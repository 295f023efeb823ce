// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/host_allocator.h"

#include <c10/core/AllocatorConfig.h>

#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "runtime/base/driver_call.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/tensor.h"

namespace outboard::aten {
namespace {

using Limits = c10::CachingAllocator::AcceleratorAllocatorConfig;

constexpr size_t kPageBytes = 4096;

/// Host memory from a driver (`owner` set) or from the C library.
struct PinnedBlock {
  char* memory = nullptr;
  size_t bytes = 0;
  Device* owner = nullptr;
  std::vector<std::unique_ptr<Event>> uses;

  /// False, too, while it is unknown: the stream reports failures, not an allocation of memory.
  bool idle() {
    for (const auto& use : uses) {
      if (!use->surely_reached()) return false;
    }
    uses.clear();
    return true;
  }
};

/// Powers of two, so that blocks fit one another's requests; whole pages beyond what PYTORCH_ALLOC_CONF allows.
size_t rounded(size_t bytes) {
  if (bytes > Limits::pinned_max_round_threshold()) return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  size_t size = kPageBytes;
  while (size < bytes) size *= 2;
  return size;
}

void release_block(void* context);

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
    require_parent_process();
    const size_t size = rounded(bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    if (Limits::pinned_max_cached_size() != std::numeric_limits<size_t>::max()) {
      release_idle(Limits::pinned_max_cached_size() + 1);
    }
    PinnedBlock* block = translate_errors([&] { return take_cached(size); });
    if (block == nullptr) block = allocate_block(size);
    stats_.active_requests.increase(1);
    stats_.active_bytes.increase(size);
    return {block->memory, block, &release_block, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

  void release(PinnedBlock* block) {
    if (in_forked_child.load(std::memory_order_relaxed)) return;  // the lock may be held for ever there
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.active_requests.decrease(1);
    stats_.active_bytes.decrease(block->bytes);
    cached_.emplace(block->bytes, block);
  }

  bool record_event(void* address, void*, c10::Stream stream) override {
    return translate_errors([&] { return record_use(address, device(stream.device_index()).stream(stream.id())); });
  }

  bool record_use(const void* address, Stream& stream) {
    require_parent_process();
    std::lock_guard<std::mutex> lock(mutex_);
    PinnedBlock* block = find(address);
    if (block == nullptr) return false;
    auto event = std::make_unique<Event>(stream.device());
    event->record(stream);
    block->uses.push_back(std::move(event));
    return true;
  }

  /// False in a forked child, for which nothing is page-locked.
  bool contains(const void* address) {
    if (in_forked_child.load(std::memory_order_relaxed)) return false;
    std::lock_guard<std::mutex> lock(mutex_);
    return find(address) != nullptr;
  }

  void empty_cache() override {
    require_parent_process();
    std::lock_guard<std::mutex> lock(mutex_);
    release_idle(0);
  }

  at::HostStats get_stats() override {
    require_parent_process();
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    require_parent_process();
    std::lock_guard<std::mutex> lock(mutex_);
    for (c10::CachingAllocator::Stat* stat : gauges()) stat->reset_accumulated();
    stats_.num_host_alloc = 0;
    stats_.num_host_free = 0;
  }
  void reset_peak_stats() override {
    require_parent_process();
    std::lock_guard<std::mutex> lock(mutex_);
    for (c10::CachingAllocator::Stat* stat : gauges()) stat->reset_peak();
  }

 private:
  std::array<c10::CachingAllocator::Stat*, 4> gauges() {
    return {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes};
  }

  /// Frees blocks of at least `bytes` that queued work is done with.
  void release_idle(size_t bytes) {
    for (auto entry = cached_.lower_bound(bytes); entry != cached_.end();) {
      PinnedBlock* block = entry->second;
      if (!translate_errors([&] { return block->idle(); })) {
        ++entry;
        continue;
      }
      entry = cached_.erase(entry);
      free_block(block);
    }
  }

  PinnedBlock* find(const void* address) {
    auto next = blocks_.upper_bound(static_cast<const char*>(address));
    if (next == blocks_.begin()) return nullptr;
    PinnedBlock* block = std::prev(next)->second.get();
    return static_cast<const char*>(address) < block->memory + block->bytes ? block : nullptr;
  }

  PinnedBlock* take_cached(size_t size) {
    auto [first, last] = cached_.equal_range(size);
    for (auto entry = first; entry != last; ++entry) {
      PinnedBlock* block = entry->second;
      if (!block->idle()) continue;
      cached_.erase(entry);
      return block;
    }
    return nullptr;
  }

  PinnedBlock* allocate_block(size_t size) {
    auto block = std::make_unique<PinnedBlock>();
    block->bytes = size;
    void* memory = nullptr;
    Device& target = device(-1);
    const ob_driver& driver = target.driver();
    if (has_host_memory(driver)) {
      TORCH_CHECK_WITH(OutOfMemoryError, driver.host_alloc(target.handle(), size, &memory) == OB_OK, "Cannot allocate ",
                       size, " bytes of pinned memory: ", driver.last_error());
      block->owner = &target;
    } else {
      memory = std::aligned_alloc(kPageBytes, size);
      TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr, "Cannot allocate ", size, " bytes of host memory");
    }
    block->memory = static_cast<char*>(memory);
    stats_.num_host_alloc += 1;
    stats_.allocations.increase(1);
    stats_.allocated_bytes.increase(size);
    return (blocks_[block->memory] = std::move(block)).get();
  }

  void free_block(PinnedBlock* block) {
    stats_.num_host_free += 1;
    stats_.allocations.decrease(1);
    stats_.allocated_bytes.decrease(block->bytes);
    if (block->owner == nullptr) {
      std::free(block->memory);
    } else {
      const ob_driver& driver = block->owner->driver();
      TORCH_CHECK(driver.host_free(block->owner->handle(), block->memory) == OB_OK, driver.last_error());
    }
    blocks_.erase(block->memory);
  }

  std::mutex mutex_;
  std::map<const char*, std::unique_ptr<PinnedBlock>> blocks_;  ///< all, by address
  std::multimap<size_t, PinnedBlock*> cached_;                  ///< not handed out, by size
  at::HostStats stats_;
};

PinnedAllocator& allocator() {
  // Leaked: pinned tensors may outlive static destructors.
  static PinnedAllocator* const instance = new PinnedAllocator();
  return *instance;
}

void release_block(void* context) { allocator().release(static_cast<PinnedBlock*>(context)); }

REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, pinned_allocator());

}  // namespace

at::HostAllocator* pinned_allocator() { return &allocator(); }

bool is_pinned(const void* address) { return allocator().contains(address); }

void record_pinned_use(const void* address, Stream& stream) { allocator().record_use(address, stream); }

}  // namespace outboard::aten
