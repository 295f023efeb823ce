// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

#include "runtime/base/memory_lock.h"

namespace outboard {

class Allocation;
class Device;

/// Addresses that stand for tensors: a reserved range nobody can touch. It is cut into equal arenas, each of one
/// device, and an arena into slots of one power-of-two size (a slot larger than an arena takes several), so that
/// arithmetic leads from any address to its slot. A slot's entry is its owner, or, marked, the next free slot of its
/// size. The device's memory lock guards its slots: whoever makes or deletes a tensor takes that one anyway.
class AddressSpace {
  static constexpr int kClasses = 33;  // 4 KiB ... 16 TiB

  struct Unused {
    uint64_t next = 0, end = 0;
  };
  /// One device's slots of one size.
  struct Slots {
    uint64_t free = 0;  // the first, or 0
    Unused unused;
  };

 public:
  /// The slots of one device that have no owner: the device keeps them, beside their lock.
  using DeviceSlots = std::array<Slots, kClasses>;

  static AddressSpace& get();

  /// Throws OutOfMemoryError for more bytes than any address range could stand for.
  static void check_size(uint64_t bytes);

  /// An address for `owner->size()` bytes. The caller holds the device's memory lock. Throws OutOfMemoryError.
  void* take(Allocation* owner);
  /// The caller holds the device's memory lock.
  void give_back(const Allocation& owner) noexcept;
  /// The owner of the slot around an address, or nullptr. Takes the lock of the device whose address it is.
  Allocation* find(const void* pointer);
  /// Calls `function` with every owner on a device, whose memory lock the caller holds.
  void for_each(Device& device, const std::function<void(const Allocation&)>& function);

 private:
  static constexpr int kPageBits = 12;
  static constexpr uint64_t kLargestRange = uint64_t{1} << 44;  // 16 TiB
  static constexpr uint64_t kSmallestRange = uint64_t{1} << 34;
  static constexpr uint64_t kArenas = uint64_t{1} << 14;
  static constexpr uintptr_t kFreeMark = 1;

  struct Arena {
    uint64_t begin = 0;  // of the first arena of the slot
    int size_class = 0;
    MemoryLock* lock = nullptr;                 // of its device
    std::atomic<uintptr_t*> entries = nullptr;  // the last to be set: what is above is then there to be read
  };

  AddressSpace();
  static int class_of(uint64_t bytes);
  static Slots& slots_of(const Allocation& owner);
  uintptr_t* entry_of(uint64_t address);
  uint64_t reuse(Slots& slots);
  uint64_t carve(Slots& slots, const Allocation& owner);
  Unused open_arenas(int size_class, MemoryLock& lock);

  uint64_t begin_ = 0;
  int arena_bits_ = 0;
  std::mutex opening_;  // of arenas, for all devices
  std::atomic<uint64_t> next_arena_{0};
  Arena arenas_[kArenas];
};

}  // namespace outboard
