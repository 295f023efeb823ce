// SPDX-License-Identifier: Apache-2.0
#include "runtime/allocation.h"

#include <sys/mman.h>

#include <map>
#include <vector>

#include "runtime/device.h"
#include "runtime/error.h"

namespace outboard {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kLargestRange = uint64_t{1} << 44;  // 16 TiB
constexpr uint64_t kSmallestRange = uint64_t{1} << 34;
constexpr int kClasses = 45;

/// Addresses that stand for tensors: a reserved range nobody can touch, cut into power-of-two pieces of pages, each
/// reused by size class.
class AddressSpace {
 public:
  static AddressSpace& get() {
    static AddressSpace* const instance = new AddressSpace;
    return *instance;
  }

  void* take(Allocation* owner, uint64_t bytes) {
    const int size_class = class_of(bytes);
    std::lock_guard lock(mutex_);
    uint64_t address;
    if (!free_[size_class].empty()) {
      address = free_[size_class].back();
      free_[size_class].pop_back();
    } else {
      const uint64_t size = kPage << size_class;
      if (next_ + size > end_) throw OutOfMemoryError("the address range for tensors is used up: free some tensors");
      address = next_;
      next_ += size;
    }
    live_[address] = {owner, bytes};
    return reinterpret_cast<void*>(address);
  }

  void give_back(void* address, uint64_t bytes) noexcept {
    std::lock_guard lock(mutex_);
    live_.erase(reinterpret_cast<uint64_t>(address));
    free_[class_of(bytes)].push_back(reinterpret_cast<uint64_t>(address));
  }

  Allocation* find(const void* pointer) {
    const auto address = reinterpret_cast<uint64_t>(pointer);
    if (address < begin_ || address >= end_) return nullptr;
    std::lock_guard lock(mutex_);
    auto next = live_.upper_bound(address);
    if (next == live_.begin()) return nullptr;
    --next;
    const uint64_t offset = address - next->first;
    return offset == 0 || offset < next->second.bytes ? next->second.owner : nullptr;
  }

 private:
  struct Live {
    Allocation* owner;
    uint64_t bytes;
  };

  AddressSpace() {
    for (uint64_t size = kLargestRange; size >= kSmallestRange; size /= 2) {
      void* range = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (range == MAP_FAILED) continue;
      begin_ = next_ = reinterpret_cast<uint64_t>(range);
      end_ = begin_ + size;
      return;
    }
    throw OutOfMemoryError("the system refuses to reserve an address range for tensors (see ulimit -v)");
  }

  static int class_of(uint64_t bytes) {
    int size_class = 0;
    while ((kPage << size_class) < bytes && size_class < kClasses - 1) ++size_class;
    return size_class;
  }

  std::mutex mutex_;
  uint64_t begin_ = 0, next_ = 0, end_ = 0;
  std::vector<uint64_t> free_[kClasses];
  std::map<uint64_t, Live> live_;
};

}  // namespace

Allocation::Allocation(Device& device, uint64_t bytes, void* address)
    : device_(device), size_(bytes), address_(address) {}

Allocation::~Allocation() {
  if (block_ != nullptr) device_.allocator().free(block_);
}

Allocation* Allocation::create(Device& device, uint64_t bytes) {
  auto* allocation = new Allocation(device, bytes, nullptr);
  try {
    allocation->address_ = AddressSpace::get().take(allocation, bytes);
  } catch (...) {
    delete allocation;
    throw;
  }
  return allocation;
}

Allocation* Allocation::find(const void* address) { return AddressSpace::get().find(address); }

void Allocation::release() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  AddressSpace::get().give_back(address_, size_);
  delete this;
}

ob_ptr Allocation::resolve(Stream& stream) {
  if (size_ == 0) return 0;
  std::lock_guard lock(mutex_);
  if (residency_ == Residency::kUnbacked) {
    block_ = device_.allocator().allocate(size_, stream);
    home_ = &stream;
    residency_ = Residency::kDevice;
  } else if (&stream != home_) {
    device_.allocator().record_stream(block_, stream);
  }
  return block_->ptr;
}

void Allocation::record_stream(Stream& stream) {
  std::lock_guard lock(mutex_);
  if (block_ != nullptr && &stream != home_) device_.allocator().record_stream(block_, stream);
}

}  // namespace outboard
