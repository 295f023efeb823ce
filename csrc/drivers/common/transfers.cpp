// SPDX-License-Identifier: Apache-2.0
#include "common/transfers.h"

#include <algorithm>
#include <cstring>

namespace outboard::common {
namespace {

struct HostCopy {
  char* target;
  const char* source;
  uint64_t bytes;
};

/// Parts of a copy: few enough to cost nothing, and no smaller than pays for another thread.
constexpr uint64_t kCopyPart = uint64_t{256} << 10;

void copy_parts(const void* job, void*, uint64_t begin, uint64_t end) {
  const auto& copy = *static_cast<const HostCopy*>(job);
  const uint64_t first = begin * kCopyPart, last = std::min(end * kCopyPart, copy.bytes);
  std::memcpy(copy.target + first, copy.source + first, last - first);
}

}  // namespace

void copy_on_host(ThreadPool* pool, void* target, const void* source, uint64_t bytes, bool overlaps) {
  if (pool == nullptr || overlaps || bytes < 4 * kCopyPart) {
    std::memmove(target, source, bytes);
    return;
  }
  const HostCopy copy{static_cast<char*>(target), static_cast<const char*>(source), bytes};
  pool->run({(bytes + kCopyPart - 1) / kCopyPart, copy_parts, &copy, 0});
}

void fill_on_host(char* target, const void* pattern, uint32_t size, uint64_t bytes) {
  if (size == 1) {
    std::memset(target, *static_cast<const unsigned char*>(pattern), bytes);
    return;
  }
  uint64_t done = size < bytes ? size : bytes;
  std::memcpy(target, pattern, done);
  while (done < bytes) {
    const uint64_t step = done < bytes - done ? done : bytes - done;
    std::memcpy(target + done, target, step);
    done += step;
  }
}

}  // namespace outboard::common
