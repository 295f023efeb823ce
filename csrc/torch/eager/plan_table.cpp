// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/plan_table.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

#include "runtime/device.h"
#include "runtime/programs/program_cache.h"
#include "torch/bridge/devices.h"

namespace outboard::aten {
namespace {

/// What a variable of the environment says how many `things` there may be at most, but no fewer than compiling one may
/// need at a time.
size_t most_of(const char* variable, const char* things, size_t usual) {
  constexpr size_t kFewest = 64;
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return usual;
  char* end = nullptr;
  const unsigned long long number = std::strtoull(text, &end, 10);
  TORCH_CHECK_VALUE(*end == '\0' && *text != '-' && number > 0, variable, "='", text, "' is not a positive number of ",
                    things);
  return std::max<size_t>(kFewest, number);
}

size_t most_plans() {
  static const size_t most = most_of("OUTBOARD_MAX_PLANS", "plans", 16384);
  return most;
}

/// Drivers load each program as a library of its own, of which a process can have some thousands.
size_t most_programs() {
  static const size_t most = [] {
    const size_t number = most_of("OUTBOARD_MAX_PROGRAMS", "programs", 4096);
    ProgramCache::keep_unused(number / 4);
    return number;
  }();
  return most;
}

size_t programs_held() {
  int64_t held = 0;
  Runtime& runtime = opened_runtime();
  for (int i = 0; i < runtime.device_count(); ++i) held += runtime.device(i).programs().statistics().held;
  return static_cast<size_t>(held);
}

/// Plans of an entry as the table counts what it holds.
size_t held_by(const PlanEntry& entry) {
  const Variants* const variants = entry.variants.load(std::memory_order_relaxed);
  return variants == nullptr ? 1 : variants->size();
}

}  // namespace

PlanTable& PlanTable::instance() {
  static PlanTable* const instance = new PlanTable;  // leaked: operators may still run when the process ends
  return *instance;
}

PlanEntry& PlanTable::Recent::entry_of(const Operator& op, c10::DeviceIndex device, const SignatureBytes& signature) {
  PlanTable& table = PlanTable::instance();
  const uint64_t generation = table.generation();
  if (generation_ != generation) {
    lookups_.fill({});
    generation_ = generation;
  }
  const uint64_t hash = signature.hash(reinterpret_cast<uintptr_t>(&op) + static_cast<uint64_t>(device));
  Lookup& last = lookups_[hash % kLookups];
  if (last.op == &op && last.device == device && signature.equals(last.bytes)) return *last.entry;
  const std::string_view bytes = signature.view();
  std::string key(1, static_cast<char>(device));
  key.append(op.name).append(bytes);
  PlanEntry& entry = table.entry_under(key);
  last = {&op, device, std::string(bytes), &entry};
  return entry;
}

PlanEntry& PlanTable::entry_under(const std::string& key) {
  std::unique_lock lock(mutex_);
  std::shared_ptr<PlanEntry>& known = entries_[key];
  if (known == nullptr) {
    known = std::make_shared<PlanEntry>();
    ++held_;
  }
  PlanEntry& entry = *known;
  make_room(entry);
  return entry;
}

const Executable& PlanTable::add(PlanEntry& entry, const std::string& plan, c10::DeviceIndex device) {
  auto executable =
      std::make_shared<Executable>(Plan::parse(plan.data(), plan.size()), opened_runtime().device(device));
  reclaimer_.collect();
  std::unique_lock lock(mutex_);
  const Variants* known = entry.variants.load(std::memory_order_relaxed);
  auto* grown = known == nullptr ? new Variants : new Variants(*known);
  grown->push_back(executable);
  entry.variants.store(grown, std::memory_order_release);
  if (known == nullptr) return *executable;
  reclaimer_.retire({std::shared_ptr<const Variants>(known)});
  if (entry.is_gone) return *executable;
  ++held_;
  make_room(entry);
  return *executable;
}

void PlanTable::forget(c10::DeviceIndex device) {
  std::unique_lock lock(mutex_);
  Reclaimer::Garbage gone;
  for (auto at = entries_.begin(); at != entries_.end();) {
    at = at->first.front() == static_cast<char>(device) ? take_away(at, gone) : std::next(at);
  }
  generation_.fetch_add(1, std::memory_order_release);
  reclaimer_.retire(std::move(gone));
}

/// Takes an entry away, under the lock. Who uses it goes on. The next entry.
PlanTable::Entries::iterator PlanTable::take_away(Entries::iterator at, Reclaimer::Garbage& gone) {
  held_ -= held_by(*at->second);
  at->second->is_gone = true;
  gone.push_back(std::move(at->second));
  return entries_.erase(at);
}

int64_t PlanTable::plans() {
  std::shared_lock lock(mutex_);
  int64_t plans = 0;
  for (const auto& [key, entry] : entries_) {
    const Variants* variants = entry->variants.load(std::memory_order_acquire);
    if (variants != nullptr) plans += static_cast<int64_t>(variants->size());
  }
  return plans;
}

/// Whether there are more programs than may be, and more than when this said so last: those of plans that went then may
/// still be on their way out. Under the lock.
bool PlanTable::has_too_many_programs() {
  const size_t most = most_programs(), held = programs_held();
  const bool too_many = held > std::max(most, enough_programs_);
  if (too_many || held <= most) enough_programs_ = too_many ? held + most / 16 : 0;
  return too_many;
}

/// Takes entries away if there are more plans than may be, or more programs, until a quarter of the room is free: first
/// those that were not used since the last time (second chance, Corbato, 1968), then any but `wanted`. Under the lock.
void PlanTable::make_room(const PlanEntry& wanted) {
  if (!has_too_many_programs() && held_ <= most_plans()) return;
  const size_t room = std::min(held_, most_plans());
  Reclaimer::Garbage gone;
  const auto sweep = [&](bool spare_used) {
    for (auto at = entries_.begin(); at != entries_.end() && held_ > room - room / 4;) {
      const bool stays = at->second.get() == &wanted || (at->second->used.exchange(false) && spare_used);
      at = stays ? std::next(at) : take_away(at, gone);
    }
  };
  sweep(true);
  sweep(false);
  generation_.fetch_add(1, std::memory_order_release);
  reclaimer_.retire(std::move(gone));
}

}  // namespace outboard::aten
