// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "outboard/driver.h"

namespace outboard::strict {

/// One member's part of a collective, with what the caller's memory held.
class Collective {
 public:
  Collective(const ob_collective& given, uint32_t rank, uint32_t size);

  /// What breaks a rule of driver.h, or "".
  std::string problem() const;
  /// Bytes at the source and at the target.
  uint64_t source_bytes() const;
  uint64_t target_bytes() const;
  /// For the wrapped driver, with addresses of its own. Points into this object.
  ob_collective at(ob_ptr source, ob_ptr target) const;

 private:
  bool is_root() const { return given_.root == rank_; }
  std::string problem_of_places() const;

  ob_collective given_;
  const uint32_t rank_, size_;
  std::vector<uint64_t> sent_, received_;
};

}  // namespace outboard::strict
