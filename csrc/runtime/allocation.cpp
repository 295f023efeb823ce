// SPDX-License-Identifier: Apache-2.0
#include "runtime/allocation.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/device.h"
#include "runtime/driver_call.h"
#include "runtime/error.h"

namespace outboard {
namespace {

constexpr int kPageBits = 12;
constexpr uint64_t kLargestRange = uint64_t{1} << 44;  // 16 TiB
constexpr uint64_t kSmallestRange = uint64_t{1} << 34;
constexpr uint64_t kArenas = uint64_t{1} << 14;
constexpr int kClasses = 33;  // 4 KiB ... 16 TiB

/// Addresses that stand for tensors: a reserved range nobody can touch. It is cut into equal arenas, and an arena into
/// slots of one power-of-two size (a slot larger than an arena takes several), so that arithmetic leads from any
/// address to its slot. A slot's entry is its owner, or, marked, the next free slot of its size.
class AddressSpace {
 public:
  static AddressSpace& get() {
    static AddressSpace* const instance = new AddressSpace;  // leaked: tensors may outlive static destructors
    return *instance;
  }

  void* take(Allocation* owner) {
    const int size_class = class_of(owner->size());
    std::lock_guard lock(mutex_);
    const uint64_t address = free_[size_class] != 0 ? reuse(size_class) : carve(size_class);
    *entry_of(address) = reinterpret_cast<uintptr_t>(owner);
    return reinterpret_cast<void*>(address);
  }

  void give_back(const Allocation& owner) noexcept {
    const int size_class = class_of(owner.size());
    const auto address = reinterpret_cast<uint64_t>(owner.address());
    std::lock_guard lock(mutex_);
    *entry_of(address) = free_[size_class] | kFreeMark;
    free_[size_class] = address;
  }

  Allocation* find(const void* pointer) {
    const auto address = reinterpret_cast<uint64_t>(pointer);
    if (address < begin_ || address >= begin_ + (kArenas << arena_bits_)) return nullptr;
    std::lock_guard lock(mutex_);
    const uintptr_t* entry = entry_of(address);
    if (entry == nullptr || *entry == 0 || (*entry & kFreeMark) != 0) return nullptr;
    auto* owner = reinterpret_cast<Allocation*>(*entry);
    const uint64_t offset = address - reinterpret_cast<uint64_t>(owner->address());
    return offset == 0 || offset < owner->size() ? owner : nullptr;
  }

 private:
  static constexpr uintptr_t kFreeMark = 1;

  struct Arena {
    uint64_t begin = 0;  // of the first arena of the slot
    int size_class = 0;
    uintptr_t* entries = nullptr;
  };
  struct Unused {
    uint64_t next = 0, end = 0;
  };

  AddressSpace() {
    for (arena_bits_ = 30; kArenas << arena_bits_ >= kSmallestRange; --arena_bits_) {
      void* range =
          mmap(nullptr, kArenas << arena_bits_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (range == MAP_FAILED) continue;
      begin_ = reinterpret_cast<uint64_t>(range);
      return;
    }
    throw OutOfMemoryError("the system refuses to reserve an address range for tensors (see ulimit -v)");
  }

  static int class_of(uint64_t bytes) {
    if (bytes > kLargestRange) throw OutOfMemoryError("a tensor of " + std::to_string(bytes) + " bytes is too large");
    const uint64_t pages = (bytes + (1u << kPageBits) - 1) >> kPageBits;
    return pages <= 1 ? 0 : 64 - __builtin_clzll(pages - 1);
  }

  uintptr_t* entry_of(uint64_t address) {
    const Arena& arena = arenas_[(address - begin_) >> arena_bits_];
    if (arena.entries == nullptr) return nullptr;
    return arena.entries + ((address - arena.begin) >> (kPageBits + arena.size_class));
  }

  uint64_t reuse(int size_class) {
    const uint64_t address = free_[size_class];
    free_[size_class] = *entry_of(address) & ~kFreeMark;
    return address;
  }

  uint64_t carve(int size_class) {
    Unused& unused = unused_[size_class];
    if (unused.next == unused.end) unused = open_arenas(size_class);
    const uint64_t address = unused.next;
    unused.next += uint64_t{1} << (kPageBits + size_class);
    return address;
  }

  Unused open_arenas(int size_class) {
    const int slot_bits = kPageBits + size_class;
    const uint64_t arenas = slot_bits <= arena_bits_ ? 1 : uint64_t{1} << (slot_bits - arena_bits_);
    const uint64_t slots = slot_bits >= arena_bits_ ? 1 : uint64_t{1} << (arena_bits_ - slot_bits);
    if (next_arena_ + arenas > kArenas) {
      throw OutOfMemoryError("the address range for tensors is used up: free some tensors");
    }
    auto* entries = static_cast<uintptr_t*>(std::calloc(slots, sizeof(uintptr_t)));
    if (entries == nullptr) throw OutOfMemoryError("the host has no memory left for the table of tensors");
    const uint64_t begin = begin_ + (next_arena_ << arena_bits_);
    std::fill_n(arenas_ + next_arena_, arenas, Arena{begin, size_class, entries});
    next_arena_ += arenas;
    return {begin, begin + (arenas << arena_bits_)};
  }

  std::mutex mutex_;
  uint64_t begin_ = 0;
  int arena_bits_ = 0;
  uint64_t next_arena_ = 0;
  uint64_t free_[kClasses] = {};  // first free slot
  Unused unused_[kClasses];
  Arena arenas_[kArenas];
};

}  // namespace

Allocation::Allocation(Device& device, uint64_t bytes) : device_(device), size_(bytes) {}

Allocation::~Allocation() {
  if (block_ != nullptr) device_.allocator().free(block_);
}

Allocation* Allocation::create(Device& device, uint64_t bytes) {
  refuse_in_forked_child();
  auto* allocation = new Allocation(device, bytes);
  try {
    allocation->address_ = AddressSpace::get().take(allocation);
  } catch (...) {
    delete allocation;
    throw;
  }
  return allocation;
}

Allocation* Allocation::find(const void* address) { return AddressSpace::get().find(address); }

void Allocation::release() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (in_forked_child.load(std::memory_order_relaxed)) return;  // another thread of the parent may hold the locks
  AddressSpace::get().give_back(*this);
  delete this;
}

ob_ptr Allocation::resolve(Stream& stream) {
  const ob_ptr pointer = pointer_.load(std::memory_order_acquire);
  return pointer != 0 && &stream == home_ ? pointer : resolve_slowly(stream);
}

ob_ptr Allocation::resolve_slowly(Stream& stream) {
  if (size_ == 0) return 0;
  std::lock_guard lock(mutex_);
  if (block_ != nullptr) {
    if (&stream != home_) device_.allocator().record_stream(block_, stream);
    return block_->ptr;
  }
  block_ = device_.allocator().allocate(size_, stream);
  home_ = &stream;
  pointer_.store(block_->ptr, std::memory_order_release);
  return block_->ptr;
}

void Allocation::record_stream(Stream& stream) {
  std::lock_guard lock(mutex_);
  if (block_ != nullptr && &stream != home_) device_.allocator().record_stream(block_, stream);
}

}  // namespace outboard
