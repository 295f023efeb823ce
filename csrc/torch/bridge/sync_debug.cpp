// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/sync_debug.h"

#include <c10/util/Exception.h>

namespace outboard::aten {

std::atomic<SyncDebugMode> sync_debug::mode{SyncDebugMode::kDefault};

void sync_debug::note(const std::string& operation, std::optional<HiddenCost> kind) {
  if (WaitsUnnoticed::any()) return;
  if (kind) note_cost(*kind, operation);
  if (mode.load() == SyncDebugMode::kDefault) return;
  const std::string text = "called a synchronizing operation: " + operation + " makes the host wait for the device";
  TORCH_CHECK(mode.load() != SyncDebugMode::kError, text, " (set_sync_debug_mode(\"error\") forbids it)");
  TORCH_WARN(text);
}

void set_sync_debug_mode(int mode) {
  TORCH_CHECK(mode >= 0 && mode <= 2, "invalid value of debug_mode, expected one of 0, 1, 2");
  sync_debug::mode.store(static_cast<SyncDebugMode>(mode));
}

int sync_debug_mode() { return static_cast<int>(sync_debug::mode.load()); }

}  // namespace outboard::aten
