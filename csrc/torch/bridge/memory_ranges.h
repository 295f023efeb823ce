// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

namespace outboard::aten {

/// Which memory some work uses, to find out whether pieces of it may run in any order.
class MemoryRanges {
 public:
  struct Range {
    const char* begin = nullptr;
    const char* end = nullptr;
    bool operator<(const Range& other) const { return begin < other.begin; }
  };

  /// Adds memory. False: some of it is used already, or twice.
  bool add(const std::vector<Range>& more) {
    const auto middle = static_cast<std::ptrdiff_t>(ranges_.size());
    std::copy_if(more.begin(), more.end(), std::back_inserter(ranges_),
                 [](const Range& range) { return range.begin != range.end; });
    std::sort(ranges_.begin() + middle, ranges_.end());
    std::inplace_merge(ranges_.begin(), ranges_.begin() + middle, ranges_.end());
    return std::adjacent_find(ranges_.begin(), ranges_.end(),
                              [](const Range& a, const Range& b) { return b.begin < a.end; }) == ranges_.end();
  }

 private:
  std::vector<Range> ranges_;  // in order
};

}  // namespace outboard::aten
