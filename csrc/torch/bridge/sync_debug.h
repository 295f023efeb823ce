// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "torch/bridge/hidden_costs.h"

/// Finding the places where a program makes the host wait for the device: `torch.<device>.set_sync_debug_mode`, with
/// the meaning that CUDA gives it. Reading a number, and copies between host and device that are not asynchronous, are
/// noted, and so is waiting for a stream. Waits that are asked for by name, for a device or an event, are not.
namespace outboard::aten {

enum class SyncDebugMode : int { kDefault = 0, kWarn = 1, kError = 2 };

/// Sets what happens at a wait, in all threads. Throws c10::Error for a mode that does not exist.
void set_sync_debug_mode(int mode);
int sync_debug_mode();

namespace sync_debug {
extern std::atomic<SyncDebugMode> mode;
/// Tells who looks for costs of this kind, and warns or throws c10::Error if that is the mode, unless a
/// `WaitsUnnoticed` exists in this thread.
void note(const std::string& operation, std::optional<HiddenCost> kind);
}  // namespace sync_debug

/// Whether waits are looked for: to be asked before anything is computed for `note_wait`.
inline bool waits_are_noticed() {
  return sync_debug::mode.load(std::memory_order_relaxed) != SyncDebugMode::kDefault || costs_are_observed();
}

/// Says that `operation` is about to make the host wait for the device, and what kind of cost that is; none if it is
/// part of one that was told. Throws c10::Error if waits are forbidden.
inline void note_wait(const std::string& operation, std::optional<HiddenCost> kind = HiddenCost::kWait) {
  if (waits_are_noticed()) sync_debug::note(operation, kind);
}

/// While it exists, waits of this thread go unnoticed: they belong to one that was noted, or are the compiler's own.
class WaitsUnnoticed {
 public:
  WaitsUnnoticed() { ++depth(); }
  ~WaitsUnnoticed() { --depth(); }
  WaitsUnnoticed(const WaitsUnnoticed&) = delete;
  WaitsUnnoticed& operator=(const WaitsUnnoticed&) = delete;

  static bool any() { return depth() > 0; }

 private:
  static int& depth() {
    thread_local int count = 0;
    return count;
  }
};

}  // namespace outboard::aten
