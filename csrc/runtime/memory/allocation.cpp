// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/allocation.h"

#include <utility>

#include "runtime/base/driver_call.h"
#include "runtime/device.h"
#include "runtime/memory/address_space.h"

namespace outboard {

Allocation::Allocation(Device& device, uint64_t bytes, std::shared_ptr<const void> foreign)
    : device_(device), size_(bytes), pool_(current_memory_pool(device.index())), foreign_(std::move(foreign)) {}

Allocation* Allocation::create(Device& device, uint64_t bytes) {
  refuse_in_forked_child();
  auto* allocation = new Allocation(device, bytes);
  try {
    {
      const std::lock_guard guard(device.order().lock());
      allocation->address_ = AddressSpace::get().take(allocation);
    }
    if (!is_lazy()) Work(Runtime::get().current_stream(device.index())).resolve(*allocation);
  } catch (...) {
    allocation->release();
    throw;
  }
  return allocation;
}

Allocation* Allocation::create_internal(Device& device, uint64_t bytes) {
  AddressSpace::check_size(bytes);
  return new Allocation(device, bytes);
}

Allocation* Allocation::create_over(Device& device, void* address, uint64_t bytes, std::shared_ptr<const void> memory) {
  refuse_in_forked_child();
  auto* allocation = new Allocation(device, bytes, std::move(memory));
  try {
    const std::lock_guard guard(device.order().lock());
    allocation->address_ = AddressSpace::get().take(allocation);
    allocation->pointer_ = reinterpret_cast<ob_ptr>(address);
    allocation->home_ = &device.default_stream();
    allocation->state_.store(State::kDevice, std::memory_order_release);
  } catch (...) {
    delete allocation;
    throw;
  }
  return allocation;
}

Allocation* Allocation::find(const void* address) {
  refuse_in_forked_child();
  return AddressSpace::get().find(address);
}

void Allocation::release() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (in_forked_child.load(std::memory_order_relaxed)) return;  // another thread of the parent may hold the locks
  if (foreign_ != nullptr) {
    for (Stream* stream : device_.queues()) stream->keep_until_finished(foreign_);
  }
  if (address_ != nullptr || state() != State::kUnbacked) {
    const MemoryScope scope(device_.order().lock(), Contexts::kAll);
    const std::lock_guard guard(device_.order().lock());
    if (address_ != nullptr) AddressSpace::get().give_back(*this);
    if (state() != State::kUnbacked) device_.residency().discard(*this);
  }
  delete this;
}

bool Allocation::mark_zero() { return device_.residency().mark_zero(*this); }

bool Allocation::adopt(std::shared_ptr<HostBuffer> buffer) {
  return device_.residency().adopt(*this, std::move(buffer));
}

std::shared_ptr<const HostBuffer> Allocation::host_contents() { return device_.residency().host_contents(*this); }

std::shared_ptr<const Arrangement> Allocation::arrangement() {
  const std::lock_guard guard(device_.order().lock());
  return arrangement_;
}

void Allocation::record_stream(Stream& stream) {
  const std::lock_guard guard(device_.order().lock());
  if (home_ != nullptr && home_ != &stream) device_.allocator().record_stream(block_, stream);
}

void Allocation::pin() {
  const std::lock_guard guard(device_.order().lock());
  pins_.fetch_add(1, std::memory_order_relaxed);
  was_pinned_ = true;
}

void Allocation::hold() {
  const std::lock_guard guard(device_.order().lock());
  holds_.fetch_add(1, std::memory_order_relaxed);
  was_pinned_ = true;
}

Work::Work(Stream& stream)
    : scope_(stream.device().order().lock()),
      stream_(stream.wait_for_room()),
      residency_(stream.device().residency()),
      order_(stream.device().order()),
      number_(order_.begin()) {}

Pin::Pin(Allocation& allocation, Stream& stream, Access access) : allocation_(allocation), pointer_(0) {
  Work work(stream);
  pointer_ = work.resolve(allocation, access);
  allocation.pin();
  allocation.retain();
}

Pin::~Pin() {
  allocation_.unpin();
  allocation_.release();
}

}  // namespace outboard
