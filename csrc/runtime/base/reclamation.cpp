// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/reclamation.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "runtime/base/driver_call.h"

namespace outboard {
namespace {

bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

/// ThreadSanitizer sees no barriers of the kernel.
bool can_make_barriers() {
#if defined(__SANITIZE_THREAD__)
  return false;
#else
  return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
#endif
}

}  // namespace

Reclaimer::Reclaimer() : others_make_barriers_(can_make_barriers()) {}

Reclaimer::Reader::Reader(Reclaimer& reclaimer) : reclaimer_(reclaimer) {
  if (in_forked_child.load(std::memory_order_relaxed)) return;  // nothing is taken away there
  const std::lock_guard guard(reclaimer_.mutex_);
  reclaimer_.readers_.insert(this);
}

Reclaimer::Reader::~Reader() {
  if (in_forked_child.load(std::memory_order_relaxed)) return;
  const std::lock_guard guard(reclaimer_.mutex_);
  reclaimer_.readers_.erase(this);
}

bool Reclaimer::make_barrier() {
  if (others_make_barriers_) return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  meeting_.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

void Reclaimer::retire(Garbage garbage) {
  if (!make_barrier()) {
    new Garbage(std::move(garbage));  // leaked: it may still be read
    return;
  }
  const std::lock_guard guard(mutex_);
  Batch batch{{}, std::move(garbage)};
  for (const Reader* reader : readers_) {
    const uint64_t phase = reader->phase_.load(std::memory_order_acquire);
    if (phase % 2 == 1) batch.readers.emplace_back(reader, phase);
  }
  batches_.push_back(std::move(batch));
}

/// A reader that is gone reads no more; a new one in its place at most makes us wait for longer.
bool Reclaimer::is_read(const Batch& batch) const {
  return std::any_of(batch.readers.begin(), batch.readers.end(), [this](const auto& reader) {
    return readers_.count(reader.first) != 0 && reader.first->phase_.load(std::memory_order_acquire) == reader.second;
  });
}

void Reclaimer::collect() {
  std::vector<Batch> ended;  // let go without the lock: what it holds may take others
  const std::lock_guard guard(mutex_);
  const auto kept =
      std::stable_partition(batches_.begin(), batches_.end(), [this](const Batch& batch) { return is_read(batch); });
  std::move(kept, batches_.end(), std::back_inserter(ended));
  batches_.erase(kept, batches_.end());
}

size_t Reclaimer::kept() const {
  const std::lock_guard guard(mutex_);
  return batches_.size();
}

}  // namespace outboard
