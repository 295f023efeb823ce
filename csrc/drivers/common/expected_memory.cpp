// SPDX-License-Identifier: Apache-2.0
#include "common/expected_memory.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include "common/host_memory.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace outboard::common {
namespace {

constexpr uint64_t kHuge = uint64_t{2} << 20;
constexpr uint64_t kSmallest = 4096;  // bytes of a page where the system has no large one to spare
/// Pages between looks at how much memory the machine has left.
constexpr uint64_t kPagesPerLook = 16;
/// Of the machine's memory, or of its share that this process may have, this part stays free.
constexpr uint64_t kSpare = 4;

uint64_t whole_pages(uint64_t bytes) { return (bytes + kHuge - 1) / kHuge * kHuge; }

bool enough_left() {
  const HostMemory memory = HostMemory::now();
  return memory.available > memory.total / kSpare;
}

/// Writes to each page. Nobody else uses them yet.
void touch(char* page) {
  for (uint64_t offset = 0; offset < kHuge; offset += kSmallest) *static_cast<volatile char*>(page + offset) = 0;
}

}  // namespace

void prefer_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] uint64_t bytes) {
#ifdef MADV_HUGEPAGE
  const auto begin = reinterpret_cast<uint64_t>(memory);
  const uint64_t first = whole_pages(begin), last = (begin + bytes) / kHuge * kHuge;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

bool ExpectedMemory::helps() {
#ifdef __linux__
  std::ifstream file("/sys/devices/system/node/online");
  std::string nodes;
  return !(file >> nodes) || nodes == "0";
#else
  return false;
#endif
}

uint64_t ExpectedMemory::with_edges(uint64_t bytes) { return whole_pages(bytes) + kHuge; }

ExpectedMemory::ExpectedMemory(void* memory, uint64_t bytes, std::chrono::milliseconds patience)
    : begin_(reinterpret_cast<char*>(whole_pages(reinterpret_cast<uint64_t>(memory)))),
      patience_(patience),
      end_(bytes - kHuge) {
  prefer_huge_pages(begin_, end_);
  std::thread([this] { serve(); }).detach();
}

void* ExpectedMemory::take(uint64_t bytes) {
  std::unique_lock lock(mutex_);
  const uint64_t size = whole_pages(bytes);
  if (size == 0 || size > end_ - taken_) return nullptr;
  char* const piece = begin_ + taken_;
  pieces_.emplace(piece, size);
  taken_ += size;
  changed_.wait(lock, [&] { return !touching_ || ready_ >= taken_; });
  return piece;
}

bool ExpectedMemory::give_back(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = pieces_.find(memory);
  if (found == pieces_.end()) return false;
#ifdef __linux__
  madvise(memory, found->second, MADV_DONTNEED);
#endif
  pieces_.erase(found);
  return true;
}

void ExpectedMemory::serve() {
  std::unique_lock lock(mutex_);
  prepare(lock);
  return_rest(lock);
}

/// Touches page after page, ahead of what is taken.
void ExpectedMemory::prepare(std::unique_lock<std::mutex>& lock) {
  for (uint64_t pages = 0;; ++pages) {
    ready_ = std::max(ready_, taken_);
    if (ready_ >= end_ || (pages % kPagesPerLook == 0 && !enough_left())) return;
    touching_ = true;
    lock.unlock();
    touch(begin_ + ready_);
    lock.lock();
    touching_ = false;
    ready_ += kHuge;
    changed_.notify_all();
  }
}

void ExpectedMemory::return_rest(std::unique_lock<std::mutex>& lock) {
  uint64_t before;
  do {
    before = taken_;
    changed_.wait_for(lock, patience_);
  } while (taken_ != before);
  end_ = taken_;
#ifdef __linux__
  if (ready_ > taken_) madvise(begin_ + taken_, ready_ - taken_, MADV_DONTNEED);
#endif
}

}  // namespace outboard::common
