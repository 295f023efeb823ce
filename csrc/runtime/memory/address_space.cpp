// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/address_space.h"

#include <sys/mman.h>

#include <string>

#include "runtime/base/error.h"
#include "runtime/device.h"
#include "runtime/memory/allocation.h"

namespace outboard {

AddressSpace& AddressSpace::get() {
  static AddressSpace* const instance = new AddressSpace;  // leaked: tensors may outlive static destructors
  return *instance;
}

AddressSpace::Slots& AddressSpace::slots_of(const Allocation& owner) {
  return owner.device().residency().slots()[static_cast<size_t>(class_of(owner.size()))];
}

void* AddressSpace::take(Allocation* owner) {
  Slots& slots = slots_of(*owner);
  const uint64_t address = slots.free != 0 ? reuse(slots) : carve(slots, *owner);
  *entry_of(address) = reinterpret_cast<uintptr_t>(owner);
  return reinterpret_cast<void*>(address);
}

void AddressSpace::give_back(const Allocation& owner) noexcept {
  Slots& slots = slots_of(owner);
  const auto address = reinterpret_cast<uint64_t>(owner.address());
  *entry_of(address) = slots.free | kFreeMark;
  slots.free = address;
}

Allocation* AddressSpace::find(const void* pointer) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  if (address < begin_ || address >= begin_ + (kArenas << arena_bits_)) return nullptr;
  const Arena& arena = arenas_[(address - begin_) >> arena_bits_];
  if (arena.entries.load(std::memory_order_acquire) == nullptr) return nullptr;
  const std::lock_guard guard(*arena.lock);
  const uintptr_t entry = *entry_of(address);
  if (entry == 0 || (entry & kFreeMark) != 0) return nullptr;
  auto* owner = reinterpret_cast<Allocation*>(entry);
  const uint64_t offset = address - reinterpret_cast<uint64_t>(owner->address());
  return offset == 0 || offset < owner->size() ? owner : nullptr;
}

void AddressSpace::for_each(Device& device, const std::function<void(const Allocation&)>& function) {
  const uint64_t opened = next_arena_.load(std::memory_order_acquire);
  for (uint64_t i = 0; i < opened; ++i) {
    const Arena& arena = arenas_[i];
    const uintptr_t* entries = arena.entries.load(std::memory_order_acquire);
    if (entries == nullptr || arena.lock != &device.order().lock()) continue;
    const int slot_bits = kPageBits + arena.size_class;
    if (arena.begin != begin_ + (i << arena_bits_)) continue;  // a later arena of one slot
    const uint64_t slots = slot_bits >= arena_bits_ ? 1 : uint64_t{1} << (arena_bits_ - slot_bits);
    for (uint64_t slot = 0; slot < slots; ++slot) {
      const uintptr_t entry = entries[slot];
      if (entry == 0) break;  // neither this slot nor a later one was ever used
      if ((entry & kFreeMark) == 0) function(*reinterpret_cast<const Allocation*>(entry));
    }
  }
}

AddressSpace::AddressSpace() {
  for (arena_bits_ = 30; kArenas << arena_bits_ >= kSmallestRange; --arena_bits_) {
    void* range = mmap(nullptr, kArenas << arena_bits_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) continue;
    begin_ = reinterpret_cast<uint64_t>(range);
    return;
  }
  throw OutOfMemoryError("the system refuses to reserve an address range for tensors (see ulimit -v)");
}

void AddressSpace::check_size(uint64_t bytes) {
  if (bytes > kLargestRange) throw OutOfMemoryError("a tensor of " + std::to_string(bytes) + " bytes is too large");
}

int AddressSpace::class_of(uint64_t bytes) {
  check_size(bytes);
  const uint64_t pages = (bytes + (1u << kPageBits) - 1) >> kPageBits;
  return pages <= 1 ? 0 : 64 - __builtin_clzll(pages - 1);
}

uintptr_t* AddressSpace::entry_of(uint64_t address) {
  const Arena& arena = arenas_[(address - begin_) >> arena_bits_];
  uintptr_t* const entries = arena.entries.load(std::memory_order_relaxed);
  return entries + ((address - arena.begin) >> (kPageBits + arena.size_class));
}

uint64_t AddressSpace::reuse(Slots& slots) {
  const uint64_t address = slots.free;
  slots.free = *entry_of(address) & ~kFreeMark;
  return address;
}

uint64_t AddressSpace::carve(Slots& slots, const Allocation& owner) {
  const int size_class = class_of(owner.size());
  Unused& unused = slots.unused;
  if (unused.next == unused.end) unused = open_arenas(size_class, owner.device().order().lock());
  const uint64_t address = unused.next;
  unused.next += uint64_t{1} << (kPageBits + size_class);
  return address;
}

AddressSpace::Unused AddressSpace::open_arenas(int size_class, MemoryLock& lock) {
  const int slot_bits = kPageBits + size_class;
  const uint64_t arenas = slot_bits <= arena_bits_ ? 1 : uint64_t{1} << (slot_bits - arena_bits_);
  const uint64_t slots = slot_bits >= arena_bits_ ? 1 : uint64_t{1} << (arena_bits_ - slot_bits);
  const std::lock_guard opening(opening_);
  const uint64_t first = next_arena_.load(std::memory_order_relaxed);
  if (first + arenas > kArenas) {
    throw OutOfMemoryError("the address range for tensors is used up: free some tensors");
  }
  // Zeros that take memory where they are written: a device that is reset leaves its tables behind.
  void* const table = mmap(nullptr, slots * sizeof(uintptr_t), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED) throw OutOfMemoryError("the host has no memory left for the table of tensors");
  auto* entries = static_cast<uintptr_t*>(table);
  const uint64_t begin = begin_ + (first << arena_bits_);
  for (uint64_t i = first; i < first + arenas; ++i) {
    arenas_[i].begin = begin;
    arenas_[i].size_class = size_class;
    arenas_[i].lock = &lock;
    arenas_[i].entries.store(entries, std::memory_order_release);
  }
  next_arena_.store(first + arenas, std::memory_order_release);
  return {begin, begin + (arenas << arena_bits_)};
}

}  // namespace outboard
