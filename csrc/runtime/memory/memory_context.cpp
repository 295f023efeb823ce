// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/memory_context.h"

#include "runtime/base/memory_lock.h"

namespace outboard {

std::atomic<Contexts> contexts_kept{Contexts::kNone};

namespace {

std::atomic<MemoryContext (*)()> gatherer{nullptr};
thread_local MemoryContext current;

}  // namespace

void keep_contexts(Contexts contexts, MemoryContext (*gather)()) {
  gatherer.store(gather, std::memory_order_release);
  contexts_kept.store(contexts, std::memory_order_release);
}

void MemoryScope::gather(const MemoryLock& lock) {
  MemoryContext (*const function)() = gatherer.load(std::memory_order_acquire);
  if (function == nullptr || current != nullptr || lock.held()) return;
  current = function();
  outermost_ = true;
}

void MemoryScope::end() { current = nullptr; }

MemoryContext current_memory_context() { return current; }

}  // namespace outboard
