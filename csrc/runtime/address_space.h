// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

namespace outboard {

class Allocation;

/// Addresses that stand for tensors: a reserved range nobody can touch. It is cut into equal arenas, and an arena into
/// slots of one power-of-two size (a slot larger than an arena takes several), so that arithmetic leads from any
/// address to its slot. A slot's entry is its owner, or, marked, the next free slot of its size.
class AddressSpace {
 public:
  static AddressSpace& get();

  /// Throws OutOfMemoryError for more bytes than any address range could stand for.
  static void check_size(uint64_t bytes);

  /// An address for `owner->size()` bytes. Throws OutOfMemoryError.
  void* take(Allocation* owner);
  void give_back(const Allocation& owner) noexcept;
  /// The owner of the slot around an address, or nullptr.
  Allocation* find(const void* pointer);
  /// Calls `function` with every owner. No allocation can be made or deleted meanwhile.
  void for_each(const std::function<void(const Allocation&)>& function);

 private:
  static constexpr int kPageBits = 12;
  static constexpr uint64_t kLargestRange = uint64_t{1} << 44;  // 16 TiB
  static constexpr uint64_t kSmallestRange = uint64_t{1} << 34;
  static constexpr uint64_t kArenas = uint64_t{1} << 14;
  static constexpr int kClasses = 33;  // 4 KiB ... 16 TiB
  static constexpr uintptr_t kFreeMark = 1;

  struct Arena {
    uint64_t begin = 0;  // of the first arena of the slot
    int size_class = 0;
    uintptr_t* entries = nullptr;
  };
  struct Unused {
    uint64_t next = 0, end = 0;
  };

  AddressSpace();
  static int class_of(uint64_t bytes);
  uintptr_t* entry_of(uint64_t address);
  uint64_t reuse(int size_class);
  uint64_t carve(int size_class);
  Unused open_arenas(int size_class);

  std::mutex mutex_;
  uint64_t begin_ = 0;
  int arena_bits_ = 0;
  uint64_t next_arena_ = 0;
  uint64_t free_[kClasses] = {};  // first free slot
  Unused unused_[kClasses];
  Arena arenas_[kArenas];
};

}  // namespace outboard
