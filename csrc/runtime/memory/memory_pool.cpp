// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/memory_pool.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>
#include <vector>

namespace outboard {
namespace {

/// What the thread has begun, in order.
thread_local std::vector<std::pair<int, MemoryPoolPointer>> begun;

}  // namespace

MemoryPoolPointer MemoryPool::create() {
  static std::atomic<uint64_t> made{0};
  return MemoryPoolPointer(new MemoryPool(++made));
}

void begin_memory_pool(int device, MemoryPoolPointer pool) { begun.emplace_back(device, std::move(pool)); }

bool end_memory_pool(int device, const MemoryPool& pool) {
  const auto last = std::find_if(begun.rbegin(), begun.rend(), [&](const auto& entry) {
    return entry.first == device && entry.second.get() == &pool;
  });
  if (last == begun.rend()) return false;
  begun.erase(std::next(last).base());
  return true;
}

MemoryPoolPointer current_memory_pool(int device) {
  if (begun.empty()) return nullptr;
  const auto last =
      std::find_if(begun.rbegin(), begun.rend(), [&](const auto& entry) { return entry.first == device; });
  return last == begun.rend() ? nullptr : last->second;
}

}  // namespace outboard
