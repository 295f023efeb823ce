// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/storage.h"

#include <algorithm>

#include "torch/bridge/deferred.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/tensor.h"

namespace outboard::aten {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

/// Tells PyTorch's profiler, if it asks (profile_memory=True), what a storage took (bytes > 0) or gives back.
void report_memory(const Allocation& allocation, int64_t bytes) {
  if (bytes == 0 || !c10::memoryProfilingEnabled()) return;
  Device& device = allocation.device();
  const MemoryStatistics statistics = device.allocator().statistics();
  c10::reportMemoryUsageToProfiler(allocation.address(), bytes, statistics.allocated.current,
                                   statistics.reserved.current,
                                   torch_device(static_cast<c10::DeviceIndex>(device.index())));
}

void release_allocation(void* context) {
  auto* const allocation = static_cast<Allocation*>(context);
  report_memory(*allocation, -static_cast<int64_t>(allocation->size()));
  allocation->release();
}

void assign(StatArray& target, const MemoryStatistics::Gauge& gauge) {
  Stat& stat = target[static_cast<size_t>(StatType::AGGREGATE)];
  stat.current = gauge.current;
  stat.peak = gauge.peak;
  stat.allocated = gauge.total_allocated;
  stat.freed = gauge.total_freed;
}

class StorageAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Device& target = device(-1);
    return data_ptr_of(translate_errors([&] { return Allocation::create(target, bytes); }));
  }

  // The context is a record, not the memory itself, so there is no raw interface.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    if (bytes == 0) return;
    require_parent_process();
    Allocation* to = Allocation::find(destination);
    Allocation* from = Allocation::find(source);
    TORCH_CHECK(to != nullptr && from != nullptr, "copy_data: not an address of this device");
    translate_errors([&] {
      Stream& stream = current_stream(static_cast<c10::DeviceIndex>(to->device().index()));
      const uint64_t to_offset = static_cast<char*>(destination) - static_cast<char*>(to->address());
      const uint64_t from_offset = static_cast<const char*>(source) - static_cast<char*>(from->address());
      Work work(stream);
      const ob_ptr source_pointer = work.resolve(*from) + from_offset;
      stream.copy(OB_DEVICE_TO_DEVICE, work.resolve(*to) + to_offset, source_pointer, bytes);
    });
  }

  bool initialized() override { return device_count() > 0; }

  void emptyCache(c10::MempoolId_t) override {
    translate_errors([] {
      for (c10::DeviceIndex index = 0; index < device_count(); ++index) device(index).empty_cache();
    });
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    Allocation* allocation = allocation_in(data);
    if (allocation == nullptr) return;
    translate_errors([&] { allocation->record_stream(device(stream.device_index()).stream(stream.id())); });
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    const MemoryStatistics from = device(index).allocator().statistics();
    c10::CachingDeviceAllocator::DeviceStats stats;
    assign(stats.allocated_bytes, from.allocated);
    assign(stats.requested_bytes, from.allocated);
    assign(stats.reserved_bytes, from.reserved);
    assign(stats.active_bytes, from.active);
    assign(stats.inactive_split_bytes, from.cached);
    stats.num_alloc_retries = from.num_alloc_retries;
    stats.num_ooms = from.num_ooms;
    stats.num_device_alloc = from.num_device_alloc;
    stats.num_device_free = from.num_device_free;
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex index) override { device(index).reset_accumulated_statistics(); }
  void resetPeakStats(c10::DeviceIndex index) override { device(index).allocator().reset_peak(); }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    return translate_errors([&] { return device(index).memory_info(); });
  }
};

}  // namespace

c10::DeviceAllocator* storage_allocator() {
  // Leaked: tensors may outlive static destructors.
  static StorageAllocator* const allocator = new StorageAllocator();
  return allocator;
}

c10::DataPtr data_ptr_of(Allocation* allocation) {
  const auto index = static_cast<c10::DeviceIndex>(allocation->device().index());
  report_memory(*allocation, static_cast<int64_t>(allocation->size()));
  return {allocation->address(), allocation, &release_allocation, torch_device(index)};
}

Allocation* allocation_in(const c10::DataPtr& data) {
  if (data.get_deleter() != &release_allocation) return nullptr;
  return static_cast<Allocation*>(data.get_context());
}

namespace {

/// Gives a new allocation the first bytes of an old one. What does not exist yet is not brought into being for it.
void keep_prefix(Allocation& to, Allocation& from, uint64_t bytes) {
  if (from.state() == State::kUnbacked) return;
  if (from.state() == State::kZero && to.mark_zero()) return;  // bytes beyond the prefix may be anything
  Stream& stream = current_stream(static_cast<c10::DeviceIndex>(to.device().index()));
  Work work(stream);
  const ob_ptr source = work.resolve(from);
  stream.copy(OB_DEVICE_TO_DEVICE, work.resolve(to), source, bytes);
}

}  // namespace

void resize_storage(c10::StorageImpl& storage, size_t bytes) {
  require_parent_process();
  settle();  // a result that was only written down has no contents yet
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  Allocation* old = allocation_in(storage.data_ptr());
  TORCH_CHECK(old != nullptr, "Trying to resize storage whose memory is not the device's");
  const uint64_t kept = std::min<uint64_t>({storage.nbytes(), bytes, old->size()});
  c10::DataPtr data = translate_errors([&] {
    Device& now = device(static_cast<c10::DeviceIndex>(old->device().index()));  // that one may have been reset
    c10::DataPtr resized = data_ptr_of(Allocation::create(now, bytes));
    if (kept > 0) keep_prefix(*allocation_in(resized), *old, kept);
    return resized;
  });
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
}

namespace {

c10::DataPtr data_on_host_memory(Device& device, const c10::Storage& on_host) {
  TORCH_CHECK(device.takes_host_memory(), "This device does not take memory of the host");
  return translate_errors([&] {
    return data_ptr_of(Allocation::create_over(device, on_host.mutable_data(), on_host.nbytes(),
                                               std::make_shared<const c10::Storage>(on_host)));
  });
}

}  // namespace

void put_on_host_memory(c10::StorageImpl& storage, const c10::Storage& on_host) {
  settle();
  const Allocation* old = allocation_in(storage.data_ptr());
  TORCH_CHECK(old != nullptr && storage.nbytes() == on_host.nbytes(), "Expected a storage of the device, of ",
              on_host.nbytes(), " bytes");
  storage.set_data_ptr_noswap(data_on_host_memory(old->device(), on_host));
  storage.set_resizable(false);
}

c10::Storage storage_on_host_memory(const c10::Storage& on_host, c10::DeviceIndex index) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), on_host.nbytes(),
                                                            data_on_host_memory(device(index), on_host),
                                                            storage_allocator(), /*resizable=*/false));
}

std::optional<c10::Storage> host_memory_of(const c10::Storage& storage) {
  const Allocation* allocation = allocation_in(storage.data_ptr());
  if (allocation == nullptr || allocation->foreign_memory() == nullptr) return std::nullopt;
  return *static_cast<const c10::Storage*>(allocation->foreign_memory().get());
}

namespace {

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, storage_allocator());

}  // namespace
}  // namespace outboard::aten
