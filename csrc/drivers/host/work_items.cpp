// SPDX-License-Identifier: Apache-2.0
#include "host/work_items.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "host/switch_stack.h"

namespace outboard::host {
namespace {

/// Of each work-item. Pages that are not touched take no memory.
constexpr size_t kStackBytes = size_t{256} << 10;

}  // namespace

WorkItems::~WorkItems() {
  if (stacks_ != nullptr) munmap(stacks_, room_ * kStackBytes);
}

WorkItems& WorkItems::of_thread() {
  thread_local WorkItems items;
  return items;
}

void WorkItems::reserve(uint32_t items) {
  if (items <= room_) return;
  turns_.resize(items);
  exchange_.resize(items);
  if (stacks_ != nullptr) munmap(stacks_, room_ * kStackBytes);
  room_ = 0;
  void* const memory = mmap(nullptr, items * kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  stacks_ = memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
  if (stacks_ == nullptr) throw std::bad_alloc();
  room_ = items;
}

void WorkItems::start(uint32_t number) {
  Turn& turn = turns_[number];
  turn.stack_pointer = new_stack(stacks_ + number * kStackBytes, kStackBytes, begin_item);
  turn.state = State::ready;
  uint64_t rest = number;
  for (int i = 0; i < 3; ++i) {
    turn.local_id[i] = rest % item_->local_size[i];
    rest /= item_->local_size[i];
  }
}

/// Where the stack of a work-item begins.
void WorkItems::begin_item() {
  WorkItems& self = of_thread();
  self.kernel_(self.arguments_, self.item_, self.group_, self.group_ + 1);
  self.leave(State::done);
}

void WorkItems::wait(Item*, uint32_t whole_group) {
  of_thread().leave(whole_group != 0 ? State::at_group_barrier : State::at_sub_group_barrier);
}

/// Gives the turn back.
void WorkItems::leave(State state) {
  Turn& turn = turns_[current_];
  turn.state = state;
  switch_stack(&turn.stack_pointer, scheduler_);
}

void WorkItems::resume(uint32_t number) {
  Turn& turn = turns_[number];
  current_ = number;
  std::memcpy(item_->local_id, turn.local_id, sizeof(turn.local_id));
  switch_stack(&scheduler_, turn.stack_pointer);
}

/// Runs the items of a sub-group until all wait for the group or are done; true if some wait.
bool WorkItems::run_sub_group(uint32_t first, uint32_t end) {
  for (bool again = true; again;) {
    again = false;
    for (uint32_t i = first; i < end; ++i) {
      if (turns_[i].state == State::ready) resume(i);
      if (turns_[i].state == State::at_sub_group_barrier) again = true;
    }
    for (uint32_t i = first; i < end; ++i) {
      if (turns_[i].state == State::at_sub_group_barrier) turns_[i].state = State::ready;
    }
  }
  return std::any_of(turns_.begin() + first, turns_.begin() + end,
                     [](const Turn& turn) { return turn.state == State::at_group_barrier; });
}

void WorkItems::run(RunGroups kernel, const ob_argument* arguments, Item& item, uint64_t group) {
  const auto items = static_cast<uint32_t>(item.local_size[0] * item.local_size[1] * item.local_size[2]);
  const uint32_t sub_group = item.sub_group_size > 1 ? item.sub_group_size : items;
  kernel_ = kernel;
  arguments_ = arguments;
  item_ = &item;
  group_ = group;
  item.exchange = exchange_.data();
  item.barrier = wait;
  for (uint32_t i = 0; i < items; ++i) start(i);
  for (bool waiting = true; waiting;) {
    waiting = false;
    for (uint32_t first = 0; first < items; first += sub_group) {
      if (run_sub_group(first, std::min(first + sub_group, items))) waiting = true;
    }
    for (uint32_t i = 0; i < items; ++i) {
      if (turns_[i].state == State::at_group_barrier) turns_[i].state = State::ready;
    }
  }
}

}  // namespace outboard::host
