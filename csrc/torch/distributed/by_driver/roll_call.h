// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "distributed/process.h"

namespace outboard::distributed {

/// A wait for all ranks of a group checks five times a second whether processes of some have ended, as far as their
/// numbers are known here.
class RollCall {
 public:
  /// `ranks`: outlives this. `absences`: looks in a row that must find a process ended before its rank counts as lost.
  RollCall(const std::vector<ProcessIdentity>& ranks, int absences) : ranks_(ranks), allowed_(absences) {}

  /// A rank that is lost, or nothing. For loops: does nothing most times.
  std::optional<int> lost_rank();

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<int> absent_rank() const;

  const std::vector<ProcessIdentity>& ranks_;
  const int allowed_;
  Clock::time_point next_look_ = Clock::now() + kInterval;
  int absences_ = 0;  ///< in a row: time alone would go on while this process does not run

  static constexpr std::chrono::milliseconds kInterval{200};
};

}  // namespace outboard::distributed
