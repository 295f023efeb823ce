// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "torch/distributed/staging/message.h"
#include "torch/distributed/terms/tensors.h"

namespace outboard::distributed {

/// A backend for CPU tensors over another one, which does what no override of a subclass does: messages, and what
/// concerns the group as a whole.
class ForwardingBackend : public c10d::Backend {
 public:
  explicit ForwardingBackend(c10::intrusive_ptr<c10d::Backend> under)
      : Backend(under->getRank(), under->getSize()), under_(std::move(under)) {}

  const std::string getBackendName() const override { return under_->getBackendName(); }
  void setTimeout(std::chrono::milliseconds timeout) override { under_->setTimeout(timeout); }
  void abort() override { under_->abort(); }

  WorkPointer send(Tensors& tensors, int target, int tag) override { return under_->send(tensors, target, tag); }
  WorkPointer recv(Tensors& tensors, int source, int tag) override { return under_->recv(tensors, source, tag); }
  WorkPointer recvAnysource(Tensors& tensors, int tag) override { return under_->recvAnysource(tensors, tag); }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    under_->monitoredBarrier(options, wait_all_ranks);
  }
  void setSequenceNumberForGroup() override { under_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return under_->getSequenceNumberForGroup(); }

 protected:
  c10d::Backend& below() const { return *under_; }

 private:
  const c10::intrusive_ptr<c10d::Backend> under_;
};

}  // namespace outboard::distributed
