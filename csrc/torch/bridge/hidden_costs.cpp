// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/hidden_costs.h"

#include <memory>
#include <mutex>
#include <utility>

namespace outboard::aten {
namespace {

struct CostsWatched {
  std::mutex mutex;
  std::shared_ptr<const CostObserver> observer;
};

CostsWatched& costs_watched() {
  static CostsWatched* const instance = new CostsWatched;
  return *instance;
}

}  // namespace

std::atomic<bool> hidden_costs::observed{false};

const char* word_for(HiddenCost kind) {
  switch (kind) {
    case HiddenCost::kFallback:
      return "fallback";
    case HiddenCost::kWait:
      return "wait";
    case HiddenCost::kCopy:
      return "copy";
    case HiddenCost::kConversion:
      return "conversion";
    case HiddenCost::kCompilation:
      return "compilation";
  }
  return "";
}

void observe_costs(CostObserver observer) {
  const bool there = static_cast<bool>(observer);
  std::lock_guard lock(costs_watched().mutex);
  costs_watched().observer = there ? std::make_shared<const CostObserver>(std::move(observer)) : nullptr;
  hidden_costs::observed.store(there);
}

void hidden_costs::tell(HiddenCost kind, const std::string& what, const std::string& cause) {
  std::shared_ptr<const CostObserver> observer;
  {
    std::lock_guard lock(costs_watched().mutex);
    observer = costs_watched().observer;
  }
  if (observer) (*observer)(kind, what, cause);
}

}  // namespace outboard::aten
