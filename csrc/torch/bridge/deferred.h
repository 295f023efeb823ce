// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

/// Work that was written down instead of submitted (chains of `_foreach_*` operators): a leaf, so that the bridge can
/// ask for it to be submitted without knowing who wrote it down.
namespace outboard::aten {

namespace deferred {

/// Threads with work that waits. Asked by every operator: a variable of the thread's own takes a call to find.
extern constinit std::atomic<int> waiting;

/// Submits the calling thread's work, if it has any. Set, before anything waits, by who writes work down.
extern constinit std::atomic<void (*)()> submit;

}  // namespace deferred

/// To be called before memory of the device is looked at or used, and before work is ordered: what was written down
/// comes first. Throws what launches throw.
inline void settle() {
  if (deferred::waiting.load(std::memory_order_relaxed) != 0) deferred::submit.load(std::memory_order_acquire)();
}

}  // namespace outboard::aten
