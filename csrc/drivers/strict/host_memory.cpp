// SPDX-License-Identifier: Apache-2.0
#include "strict/host_memory.h"

#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <list>
#include <mutex>
#include <string>

#include "strict/violations.h"

namespace outboard::strict {
namespace {

struct Range {
  const HostMemory* owner;
  uint64_t begin, end;
  bool written;
};

std::mutex& mutex() {
  static auto* const instance = new std::mutex;
  return *instance;
}

std::list<Range>& outstanding() {
  static auto* const instance = new std::list<Range>;
  return *instance;
}

bool overlaps(uint64_t begin, uint64_t end, bool written_only) {
  for (const Range& range : outstanding()) {
    if (range.begin < end && begin < range.end && (range.written || !written_only)) return true;
  }
  return false;
}

uint64_t sum_of(const char* bytes, uint64_t count) {
  uint64_t sum = 1469598103934665603u;
  uint64_t word = 0;
  for (; count >= sizeof(word); count -= sizeof(word), bytes += sizeof(word)) {
    std::memcpy(&word, bytes, sizeof(word));
    sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
    sum ^= sum >> 29;
  }
  word = 0;
  std::memcpy(&word, bytes, count);
  return (sum ^ word) * 0x9E3779B97F4A7C15u;
}

/// Moves bytes so that memory which is not there any more is an answer, not the end of the process. AddressSanitizer
/// does not look into system calls, and says more.
bool move(char* to, const char* from, uint64_t bytes, [[maybe_unused]] bool reading) {
#if !defined(__SANITIZE_ADDRESS__)
  while (bytes > 0) {
    iovec own{reading ? to : const_cast<char*>(from), bytes}, other{reading ? const_cast<char*>(from) : to, bytes};
    const ssize_t moved = reading ? process_vm_readv(getpid(), &own, 1, &other, 1, 0)
                                  : process_vm_writev(getpid(), &own, 1, &other, 1, 0);
    if (moved <= 0 && errno == EFAULT) return false;
    if (moved <= 0) break;  // this system has no such call, or it is forbidden
    to += moved;
    from += moved;
    bytes -= static_cast<uint64_t>(moved);
  }
#endif
  std::memcpy(to, from, bytes);
  return true;
}

}  // namespace

HostMemory::HostMemory(uint64_t address, uint64_t bytes, bool written)
    : address_(address), bytes_(bytes), written_(written) {
  {
    std::lock_guard<std::mutex> lock(mutex());
    known_ = !overlaps(address, address + bytes, /*written_only=*/true);
    outstanding().push_back({this, address, address + bytes, written});
  }
  // After the look: what was queued before has arrived by now, or is known to be on its way.
  sum_ = known_ ? sum_of(reinterpret_cast<const char*>(address), bytes) : 0;
}

HostMemory::~HostMemory() {
  std::lock_guard<std::mutex> lock(mutex());
  outstanding().remove_if([&](const Range& range) { return range.owner == this; });
}

bool HostMemory::in_use(uint64_t address, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex());
  return overlaps(address, address + bytes, /*written_only=*/false);
}

ob_status HostMemory::read(std::vector<char>& to) const {
  const char* what = written_ ? "the target of a copy to the host" : "the source of a copy from the host";
  to.resize(bytes_);
  if (!move(to.data(), reinterpret_cast<const char*>(address_), bytes_, true)) {
    return violation(std::string(what) + " was unmapped before the copy was finished");
  }
  if (!known_ || sum_of(to.data(), bytes_) == sum_) return OB_OK;
  return violation(std::string(what) + " (" + std::to_string(bytes_) +
                   " bytes) was freed, used for something else or changed before the copy was finished");
}

ob_status HostMemory::write(uint64_t offset, const char* from, uint64_t bytes) const {
  if (move(reinterpret_cast<char*>(address_) + offset, from, bytes, false)) return OB_OK;
  return violation("the target of a copy to the host was unmapped before the copy was finished");
}

}  // namespace outboard::strict
