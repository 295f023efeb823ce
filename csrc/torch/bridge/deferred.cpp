// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/deferred.h"

namespace outboard::aten::deferred {

constinit std::atomic<int> waiting{0};
constinit std::atomic<void (*)()> submit{nullptr};

}  // namespace outboard::aten::deferred
