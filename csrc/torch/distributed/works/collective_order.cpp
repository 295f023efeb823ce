// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/works/collective_order.h"

#include <algorithm>

#include "runtime/base/interruption.h"
#include "torch/distributed/terms/without_python.h"

namespace outboard::distributed {

DueCall CollectiveOrder::behind_others(CollectiveCall call, bool on_driver) {
  const Tensors written = joined(call.results);
  std::vector<WorkPointer> earlier;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : outstanding_) {
      if (WorkPointer work = weak.lock()) earlier.push_back(std::move(work));
    }
  }
  for (const WorkPointer& work : earlier) {
    auto* const collective = dynamic_cast<CollectiveWork*>(work.get());
    if (collective == nullptr || (on_driver && collective->on_driver())) continue;
    if (!collective->is_in_the_way(call.inputs, written)) continue;
    const WithoutPython released;
    wait_interruptibly([&] { return work->isCompleted(); });
    work->synchronize();
  }
  return {std::move(call), on_driver};
}

c10::intrusive_ptr<CollectiveWork> CollectiveOrder::work_of(DueCall due) {
  auto work = c10::make_intrusive<CollectiveWork>(rank_, std::move(due->label), due->exchange, due->inputs,
                                                  std::move(due->results), row_);
  if (due.on_driver_) work->set_on_driver();
  remember(work);
  return work;
}

void CollectiveOrder::remember(const WorkPointer& work) {
  const std::lock_guard lock(mutex_);
  if (outstanding_.size() == outstanding_.capacity()) {
    outstanding_.erase(
        std::remove_if(outstanding_.begin(), outstanding_.end(), [](const auto& weak) { return weak.expired(); }),
        outstanding_.end());
  }
  outstanding_.emplace_back(work);
}

void CollectiveOrder::abort() {
  std::vector<c10::weak_intrusive_ptr<c10d::Work>> outstanding;
  {
    const std::lock_guard lock(mutex_);
    outstanding = std::move(outstanding_);
  }
  for (const auto& weak : outstanding) {
    if (const WorkPointer work = weak.lock()) work->abort();
  }
}

}  // namespace outboard::distributed
