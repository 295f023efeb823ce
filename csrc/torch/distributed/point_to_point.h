// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "torch/distributed/staging/cpu_backend.h"
#include "torch/distributed/staging/issuer.h"
#include "torch/distributed/staging/message.h"
#include "torch/distributed/works/collective_order.h"

namespace outboard::distributed {

/// A group's messages between two ranks, by its CPU backend, with an order of their own beside that of collectives.
class PointToPoint {
 public:
  /// `cpu_backend` and `order`: outlive this.
  PointToPoint(CpuBackend& cpu_backend, CollectiveOrder& order, int rank)
      : cpu_backend_(cpu_backend), order_(order), rank_(rank) {}

  /// Throws c10::ValueError for a message to or from this rank itself, and for tags that are not there.
  void require(std::optional<int> peer, int tag) const;
  WorkPointer send(CollectiveCall call, int target, int tag);
  /// `source`: nothing for any.
  WorkPointer recv(CollectiveCall call, std::optional<int> source, int tag);
  /// Waits until everything is issued.
  void drain() { issuer_.drain(); }

 private:
  /// `make`: of the message's contents.
  WorkPointer start(CollectiveCall call, Intent intent,
                    const std::function<std::unique_ptr<Message>(Content content)>& make);

  CpuBackend& cpu_backend_;
  CollectiveOrder& order_;
  const int rank_;
  std::atomic<uint32_t> sent_{0};
  Issuer issuer_;
};

}  // namespace outboard::distributed
