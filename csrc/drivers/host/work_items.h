// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "host/item.h"

namespace outboard::host {

/// The work-items of one group, which take turns on one thread, each with a stack of its own: an item runs until it has
/// to wait at a barrier. One for each thread.
class WorkItems {
 public:
  WorkItems() = default;
  ~WorkItems();
  WorkItems(const WorkItems&) = delete;
  WorkItems& operator=(const WorkItems&) = delete;

  /// That of the calling thread.
  static WorkItems& of_thread();

  /// Makes room for groups of so many items. Throws std::bad_alloc.
  void reserve(uint32_t items);
  /// Runs one group: `group` in the first dimension, in the other two as `item` says. Room must have been made.
  void run(RunGroups kernel, const ob_argument* arguments, Item& item, uint64_t group);

 private:
  enum class State { ready, at_sub_group_barrier, at_group_barrier, done };

  struct Turn {
    void* stack_pointer = nullptr;  // while another one has its turn
    uint64_t local_id[3] = {};
    State state = State::done;
  };

  static void begin_item();
  static void wait(Item* item, uint32_t whole_group);
  void start(uint32_t number);
  void resume(uint32_t number);
  void leave(State state);
  bool run_sub_group(uint32_t first, uint32_t end);

  char* stacks_ = nullptr;
  uint32_t room_ = 0;  // items that there are stacks for
  std::vector<Turn> turns_;
  std::vector<uint64_t> exchange_;
  uint32_t current_ = 0;
  void* scheduler_ = nullptr;  // the stack pointer of the scheduler

  // What the group runs.
  RunGroups kernel_ = nullptr;
  const ob_argument* arguments_ = nullptr;
  Item* item_ = nullptr;
  uint64_t group_ = 0;
};

}  // namespace outboard::host
