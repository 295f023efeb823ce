// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>

namespace outboard {

class MemoryLock;

/// Where in a program memory was asked for or given back; only who embeds the runtime knows what it is.
using MemoryContext = std::shared_ptr<const void>;

/// Of what contexts are kept: of nothing, of memory that is in use, of each allocation in the history, or also of each
/// time that memory was given back.
enum class Contexts : int { kNone, kState, kAlloc, kAll };

/// From now on, in the whole process. `gather` may take locks of the embedder's: it is not called on a thread that
/// holds a device's memory lock.
void keep_contexts(Contexts contexts, MemoryContext (*gather)());
Contexts kept_contexts();

/// While it lives, what the calling thread does with memory is done from here. The outermost counts.
class MemoryScope {
 public:
  /// `lock` of the device; `least`: nothing is gathered unless so much is kept.
  explicit MemoryScope(const MemoryLock& lock, Contexts least = Contexts::kState) {
    if (kept_contexts() >= least) gather(lock);
  }
  ~MemoryScope() {
    if (outermost_) end();
  }
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  void gather(const MemoryLock& lock);
  static void end();

  bool outermost_ = false;
};

/// That of the calling thread's outermost MemoryScope, or nullptr.
MemoryContext current_memory_context();

extern std::atomic<Contexts> contexts_kept;
inline Contexts kept_contexts() { return contexts_kept.load(std::memory_order_relaxed); }

}  // namespace outboard
