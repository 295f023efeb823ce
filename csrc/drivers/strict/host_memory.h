// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "outboard/driver.h"

namespace outboard::strict {

/// Host memory that a copy was given. It belongs to the copy until that is finished: nobody else may change or free it,
/// which is looked for when the copy gets there.
class HostMemory {
 public:
  /// `written`: whether the copy writes it.
  HostMemory(uint64_t address, uint64_t bytes, bool written);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  /// The bytes, which the caller must still hold. OB_INVALID_ARGUMENT and a violation if not.
  ob_status read(std::vector<char>& to) const;
  /// Writes some of the bytes.
  ob_status write(uint64_t offset, const char* from, uint64_t bytes) const;

  /// Whether a copy that is not finished was given any of this.
  static bool in_use(uint64_t address, uint64_t bytes);

 private:
  uint64_t address_, bytes_;
  bool written_;
  bool known_;    // whether nothing that was queued before changes it
  uint64_t sum_;  // of the bytes when the copy was asked for
};

}  // namespace outboard::strict
