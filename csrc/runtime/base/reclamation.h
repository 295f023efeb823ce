// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

namespace outboard {

/// Keeps what was taken away from readers without a lock until none of them can be reading it: quiescent-state-based
/// reclamation (Hart, McKenney, Demke Brown, Walpole, "Performance of memory reclamation for lockless synchronization",
/// 2007). A reader says when it begins and ends, which costs it two stores: the barrier between "I read" and what it
/// reads is made by whoever takes something away, on all threads at once (`membarrier`, Linux), or, where the kernel
/// refuses that, by each reader. Thread-safe.
class Reclaimer {
 public:
  using Garbage = std::vector<std::shared_ptr<const void>>;

  Reclaimer();
  Reclaimer(const Reclaimer&) = delete;
  Reclaimer& operator=(const Reclaimer&) = delete;

  /// One thread that reads. Belongs to that thread.
  class Reader {
   public:
    explicit Reader(Reclaimer& reclaimer);
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

   private:
    friend class Reclaimer;

    Reclaimer& reclaimer_;
    std::atomic<uint64_t> phase_{0};  // odd while it reads
    int depth_ = 0;
  };

  /// While it lives, its thread may read what it finds after this. Sections nest.
  class Section {
   public:
    explicit Section(Reader& reader) : reader_(reader) {
      if (reader_.depth_++ == 0) reader_.reclaimer_.begin(reader_.phase_);
    }
    ~Section() {
      if (--reader_.depth_ != 0) return;
      reader_.phase_.store(reader_.phase_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;

   private:
    Reader& reader_;
  };

  /// Takes over what readers that begin from now on cannot find any more; it is let go by the first
  /// `collect` after all current readers have ended, the caller's own sections included.
  void retire(Garbage garbage);
  /// Lets go what nobody reads any more, on the calling thread.
  void collect();
  /// Of how many `retire`s something is still kept.
  size_t kept() const;

 private:
  struct Batch {
    std::vector<std::pair<const Reader*, uint64_t>> readers;  // who was reading, and in which phase
    Garbage garbage;
  };

  void begin(std::atomic<uint64_t>& phase) {
    const uint64_t next = phase.load(std::memory_order_relaxed) + 1;
    phase.store(next, std::memory_order_relaxed);
    if (others_make_barriers_) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      meeting_.fetch_add(1, std::memory_order_acq_rel);
    }
  }
  /// False if the kernel, which could once, cannot do it any more.
  bool make_barrier();
  bool is_read(const Batch& batch) const;

  const bool others_make_barriers_;
  std::atomic<uint64_t> meeting_{0};  // otherwise: whoever comes here later sees what was done before
  mutable std::mutex mutex_;
  std::unordered_set<const Reader*> readers_;
  std::vector<Batch> batches_;
};

}  // namespace outboard
