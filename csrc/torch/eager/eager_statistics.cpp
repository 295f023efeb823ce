// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/eager_statistics.h"

#include "runtime/base/driver_call.h"
#include "torch/eager/plan_table.h"

namespace outboard::aten {
namespace {

std::atomic<int64_t> misses{0};

}  // namespace

Hits::Counter::Counter() {
  if (in_forked_child.load(std::memory_order_relaxed)) return;  // nobody asks there
  all().change([this](Hits& hits) { hits.counters_.insert(this); });
}

Hits::Counter::~Counter() {
  if (in_forked_child.load(std::memory_order_relaxed)) return;
  all().change([this](Hits& hits) {
    hits.counters_.erase(this);
    hits.ended_ += count_.load(std::memory_order_relaxed);
  });
}

int64_t Hits::total() {
  int64_t sum = 0;
  all().change([&](Hits& hits) { sum = hits.sum() - hits.forgotten_; });
  return sum;
}

void Hits::reset() {
  all().change([](Hits& hits) { hits.forgotten_ = hits.sum(); });
}

Hits& Hits::all() {
  static Hits* const instance = new Hits;  // leaked: threads end after it would be gone
  return *instance;
}

int64_t Hits::sum() const {
  int64_t sum = ended_;
  for (const Counter* counter : counters_) sum += counter->count_.load(std::memory_order_relaxed);
  return sum;
}

void count_miss() { misses.fetch_add(1, std::memory_order_relaxed); }

EagerStatistics eager_statistics() { return {Hits::total(), misses.load(), PlanTable::instance().plans()}; }

void reset_eager_statistics() {
  Hits::reset();
  misses = 0;
}

}  // namespace outboard::aten
