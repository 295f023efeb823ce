// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <string>

/// What costs a program time without a word of it in the program, told to one function while someone looks
/// (`torch.<device>.explain`).
namespace outboard::aten {

enum class HiddenCost : int {
  kFallback,     ///< an operator runs on the CPU
  kWait,         ///< the host waits for the device; not for a device or an event, which programs wait for by name
  kCopy,         ///< it waits for a copy between host and device, or between devices
  kConversion,   ///< elements of the device become those of another dtype
  kCompilation,  ///< a call has no plan in memory
};

/// The word for a kind: "fallback", "wait", "copy", "conversion" or "compilation".
const char* word_for(HiddenCost kind);

/// Called as the cost begins, in the thread that has it: what it is of, and of a fallback its cause.
using CostObserver = std::function<void(HiddenCost kind, const std::string& what, const std::string& cause)>;

/// Sets the function that is told, in all threads; empty: none.
void observe_costs(CostObserver observer);

namespace hidden_costs {
extern std::atomic<bool> observed;
void tell(HiddenCost kind, const std::string& what, const std::string& cause);
}  // namespace hidden_costs

/// Whether someone looks: to be asked before anything is computed for `note_cost`.
inline bool costs_are_observed() { return hidden_costs::observed.load(std::memory_order_relaxed); }

/// Tells who looks, if someone does. Throws what the observer throws.
inline void note_cost(HiddenCost kind, const std::string& what, const std::string& cause = {}) {
  if (costs_are_observed()) hidden_costs::tell(kind, what, cause);
}

}  // namespace outboard::aten
