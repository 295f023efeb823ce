// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/by_driver/roll_call.h"

#include <algorithm>

namespace outboard::distributed {

std::optional<int> RollCall::lost_rank() {
  if (Clock::now() < next_look_) return std::nullopt;
  next_look_ = Clock::now() + kInterval;
  const std::optional<int> absent = absent_rank();
  absences_ = absent.has_value() ? absences_ + 1 : 0;
  return absences_ < allowed_ ? std::nullopt : absent;
}

std::optional<int> RollCall::absent_rank() const {
  const auto found = std::find_if(ranks_.begin(), ranks_.end(),
                                  [](const ProcessIdentity& rank) { return rank.process != 0 && has_ended(rank); });
  if (found == ranks_.end()) return std::nullopt;
  return static_cast<int>(found - ranks_.begin());
}

}  // namespace outboard::distributed
