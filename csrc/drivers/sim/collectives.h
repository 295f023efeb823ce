// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "outboard/driver.h"

namespace outboard::sim {

/// Whether members can do this together.
bool is_supported(uint32_t kind, uint32_t dtype, uint32_t reduction);

/// One member's part of a collective, with the counts that the caller's memory held.
struct Part {
  explicit Part(const ob_collective& given, uint32_t members);

  uint64_t source_bytes(uint32_t rank, uint32_t members) const;
  uint64_t target_bytes(uint32_t rank, uint32_t members) const;

  ob_collective what;
  std::vector<uint64_t> sent, received;  // bytes
};

/// A member's place in memory that processes of one machine share under a name. In each step, every member writes what
/// others need of it to its slot, waits for all, reads, and waits again.
class Members {
 public:
  /// Does not wait for the others. Throws std::runtime_error without memory.
  Members(const std::string& name, uint32_t rank, uint32_t size);
  ~Members();
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }
  /// Whether all have come. Throws std::runtime_error once they will not, since one of them gave up.
  bool are_all_here();
  bool is_aborted() const;
  /// From any thread.
  void abort();
  /// One thread at a time. What went wrong, or "".
  std::string run(const Part& part);

 private:
  struct Shared;
  struct Slot;

  static uint64_t bytes(uint32_t size);
  Shared& shared() const;
  Slot& slot(uint32_t rank) const;
  /// Waits until all members are here as often as this one. Throws std::runtime_error once it is aborted.
  void meet();
  void require_agreement(const Part& part);
  /// `bytes` of each member's `data`, piece by piece: `take` is told where in them a piece is and what is left of it.
  template <typename Take>
  void share(const char* data, uint64_t bytes, Take take);
  void broadcast(const Part& part);
  void gather(const Part& part);
  void reduce(const Part& part, const char* source, bool wanted);
  void scatter(const Part& part);

  const std::string name_;
  const uint32_t rank_, size_;
  char* memory_ = nullptr;
  uint64_t steps_ = 0;
};

}  // namespace outboard::sim
