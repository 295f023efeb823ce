// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "outboard/driver.h"

namespace outboard::host {

/// What a work-item knows of its place. Kernels read it: `struct obh_item` in builtins_text.cpp is the same.
struct Item {
  uint64_t group_id[3], local_id[3], local_size[3], group_count[3];
  uint32_t sub_group_size, dimensions;
  uint64_t* exchange;  // a place for each work-item of the group, for what sub-groups shuffle
  /// Returns when all work-items of the group, or of the sub-group, have come to it.
  void (*barrier)(Item* item, uint32_t whole_group);
};

/// Runs a kernel for the groups from `begin` to before `end` in the first dimension, of which there is one at least;
/// the item says all else. The code of each kernel has a function like this.
using RunGroups = void (*)(const ob_argument* arguments, Item* item, uint64_t begin, uint64_t end);

}  // namespace outboard::host
