// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "torch/distributed/terms/tensors.h"
#include "torch/distributed/works/work.h"

namespace outboard::distributed {

/// A collective or a message as it was called.
struct CollectiveCall {
  Label label;
  std::shared_ptr<Exchange> exchange;
  Tensors inputs;
  TensorLists results;
  Stream* parts;  ///< for copies of parts
};

/// A collective that is ordered after the earlier ones it depends on. Only a DueCall can be carried out, so no
/// collective can skip that.
class DueCall {
 public:
  CollectiveCall* operator->() { return &call_; }
  const CollectiveCall* operator->() const { return &call_; }
  CollectiveCall& operator*() { return call_; }

 private:
  friend class CollectiveOrder;
  DueCall(CollectiveCall call, bool on_driver) : call_(std::move(call)), on_driver_(on_driver) {}

  CollectiveCall call_;
  bool on_driver_;
};

/// What a group has under way, and what has to wait for that.
class CollectiveOrder {
 public:
  explicit CollectiveOrder(int rank) : rank_(rank) {}

  /// Waits for earlier collectives that write what this one uses, or use what it writes: the CPU backend works on
  /// several at a time, while programs for CUDA know that one stream has them all. `on_driver`: this one is the
  /// driver's.
  DueCall behind_others(CollectiveCall call, bool on_driver);
  /// The work of a call, which is under way from now on.
  c10::intrusive_ptr<CollectiveWork> work_of(DueCall due);
  void remember(const WorkPointer& work);
  /// Ends everybody's wait with an error.
  void abort();

 private:
  const int rank_;
  const std::shared_ptr<Row> row_ = std::make_shared<Row>();
  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<c10d::Work>> outstanding_;  ///< guarded by mutex_
};

}  // namespace outboard::distributed
