// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/reclamation.h"
#include "runtime/plans/executor.h"
#include "torch/eager/eager_operator.h"
#include "torch/eager/fallback.h"
#include "torch/eager/signature_bytes.h"

namespace outboard::aten {

using Variants = std::vector<std::shared_ptr<const Executable>>;

/// Everything known about one signature. Read without a lock, changed under the table's.
struct PlanEntry {
  PlanEntry() = default;
  ~PlanEntry() { delete variants.load(std::memory_order_relaxed); }
  PlanEntry(const PlanEntry&) = delete;
  PlanEntry& operator=(const PlanEntry&) = delete;

  std::atomic<bool> bake = false;                            ///< look again with scalar values in the signature
  std::atomic<FallbackCause> on_cpu = FallbackCause::kNone;  ///< why the call has no plan and runs on the CPU, if so
  /// Plans, told apart by their guards. Each change makes a new list; the old one is kept while somebody reads it.
  std::atomic<const Variants*> variants = nullptr;
  mutable std::atomic<bool> used = true;  ///< since the last time that room was made
  bool is_gone = false;                   ///< taken away; only who found it before still has it
};

/// The plans of the process by operator, device and signature, of which there are not more than a most. Thread-safe.
class PlanTable {
 public:
  /// What a thread looked up last: finds the entry of a repeated call without a lock or an allocation. Belongs to its
  /// thread, which uses entries in a section of `reader` only.
  class Recent {
   public:
    /// The entry of a signature, made if it is new.
    PlanEntry& entry_of(const Operator& op, c10::DeviceIndex device, const SignatureBytes& signature);
    /// For which state of the table the last entry was found: see `PlanTable::generation`.
    uint64_t generation() const { return generation_; }

    Reclaimer::Reader reader{PlanTable::instance().reclaimer_};

   private:
    struct Lookup {
      const Operator* op = nullptr;
      c10::DeviceIndex device = -1;
      std::string bytes;
      PlanEntry* entry = nullptr;
    };
    static constexpr size_t kLookups = 1024;

    uint64_t generation_ = 0;  // of what follows
    std::array<Lookup, kLookups> lookups_;
  };

  static PlanTable& instance();

  /// Adds a serialised plan to an entry. Throws Error if it is damaged.
  const Executable& add(PlanEntry& entry, const std::string& plan, c10::DeviceIndex device);

  /// Takes the entries of a device away, which was reset.
  void forget(c10::DeviceIndex device);

  /// How often entries were taken away: an entry may be used while this is what it was when the entry was found.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

  /// Plans held in memory.
  int64_t plans();

 private:
  using Entries = std::unordered_map<std::string, std::shared_ptr<PlanEntry>>;

  /// The entry under a key, made if it is new.
  PlanEntry& entry_under(const std::string& key);
  bool has_too_many_programs();
  void make_room(const PlanEntry& wanted);
  Entries::iterator take_away(Entries::iterator at, Reclaimer::Garbage& gone);

  std::shared_mutex mutex_;
  /// Removed by `take_away` only. Readers without the lock are in a section of `reclaimer_`.
  Entries entries_;
  size_t held_ = 0;             // plans, and entries that have none
  size_t enough_programs_ = 0;  // for looking again whether plans go because of them
  Reclaimer reclaimer_;
  std::atomic<uint64_t> generation_{0};
};

/// The first plan of an entry that accepts these inputs, or nullptr; its symbols are bound.
inline const Executable* find_plan(const PlanEntry& entry, const Input* inputs, std::vector<Scalar>& symbols) {
  const Variants* variants = entry.variants.load(std::memory_order_acquire);
  if (variants == nullptr) return nullptr;
  if (!entry.used.load(std::memory_order_relaxed)) entry.used.store(true, std::memory_order_relaxed);
  for (const auto& executable : *variants) {
    if (executable->bind(inputs, symbols)) return executable.get();
  }
  return nullptr;
}

}  // namespace outboard::aten
