// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/residency.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/driver_call.h"
#include "runtime/device.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/caching_allocator.h"
#include "runtime/memory/work_order.h"
#include "runtime/streams/graph.h"

namespace outboard {
namespace {

using Guard = std::lock_guard<MemoryLock>;

/// Work that finds everything in use by others looks again this often, this many times: library calls of other
/// threads pin what they use, and are done sooner or later.
constexpr std::chrono::milliseconds kPatience{1};
constexpr int kAttempts = 500;

constexpr uint64_t kWorthMoving = uint64_t{64} << 10;  // bytes

std::atomic<const std::string*> eager_variable{nullptr};
std::atomic<bool> waiting_contents{false};

void add(LazyStatistics::Gauge& gauge, uint64_t bytes) {
  gauge.bytes += static_cast<int64_t>(bytes);
  ++gauge.count;
}

void subtract(LazyStatistics::Gauge& gauge, uint64_t bytes) {
  gauge.bytes -= static_cast<int64_t>(bytes);
  --gauge.count;
}

}  // namespace

bool is_lazy() {
  static const bool lazy = [] {
    const char* text = std::getenv("OUTBOARD_LAZY");
    return text == nullptr || std::strcmp(text, "0") != 0;
  }();
  const std::string* variable = eager_variable.load(std::memory_order_acquire);
  if (variable == nullptr || !lazy) return lazy;
  const char* text = std::getenv(variable->c_str());
  return text == nullptr || std::strcmp(text, "1") != 0;
}

void set_eager_variable(const std::string& name) {
  eager_variable.store(new std::string(name), std::memory_order_release);  // leaked: others may be reading the old one
}

bool contents_wait() { return waiting_contents.load(std::memory_order_relaxed); }
void set_contents_wait(bool wait) { waiting_contents.store(wait, std::memory_order_relaxed); }

Residency::Residency(Device& device)
    : device_(device),
      allocator_(device.allocator()),
      order_(device.order()),
      lock_(device.order().lock()),
      buffers_(device) {}
Residency::~Residency() = default;

Block* Residency::allocate(uint64_t bytes, Stream& stream, const MemoryPoolPointer& pool) {
  if (bytes == 0) return nullptr;
  refuse_if_unusable(device_.driver());
  const MemoryScope scope(lock_);
  const Guard guard(lock_);
  Block* block = allocator_.try_allocate(bytes, stream, pool, CachingAllocator::Attempt::kFirst);
  while (block == nullptr) {
    if (!make_room()) allocator_.refuse(bytes);
    block = allocator_.try_allocate(bytes, stream, pool, CachingAllocator::Attempt::kAfterMoves);
  }
  return block;
}

ob_ptr Residency::resolve(Allocation& allocation, Stream& stream, Access access) {
  if (&allocation.device() != &device_ || &stream.device() != &device_) {
    refuse_if_unusable(allocation.device().driver());
    throw Error(OB_INVALID_ARGUMENT, "memory of device " + std::to_string(allocation.device().index()) +
                                         " was given to work on device " + std::to_string(stream.device().index()));
  }
  if (allocation.size() == 0) return 0;
  const Recording* recording = stream.recording();
  // Contents that are there before a graph is captured are no part of it.
  const bool outside = recording != nullptr && (allocation.state() != State::kUnbacked ||
                                                (recording->results_apart() && allocation.address() != nullptr));
  if (allocation.home_ == nullptr) bring_in(allocation, outside ? stream.actual() : stream, access);
  if (access != Access::kRead) allocation.arrangement_ = nullptr;
  if (allocation.home_ != &stream) share(allocation, stream);
  return allocation.pointer_;
}

/// Lets work of a second stream use memory: it waits for what still fills the memory, and the memory for it.
void Residency::share(Allocation& allocation, Stream& stream) {
  if (Recording* recording = stream.recording()) return recording->keep(allocation);
  const bool first_time = allocator_.record_stream(allocation.block_, stream);
  if (!allocation.unordered_) return;
  if (first_time) stream.follow(*allocation.home_);
  if (allocation.home_->query()) allocation.unordered_ = false;
}

void Residency::bring_in(Allocation& allocation, Stream& stream, Access access) {
  const std::shared_ptr<const Arrangement> arrangement = allocation.arrangement_;
  if (arrangement != nullptr && access != Access::kOverwrite) {
    Work(stream).resolve(arrangement->contents(), Access::kRead);
  }
  Block* block = allocate(allocation.size(), stream, allocation.pool_);
  // A wait for memory gives the lock up: another thread may have brought the allocation in meanwhile.
  if (allocation.home_ != nullptr || allocation.arrangement_ != arrangement) {
    allocator_.free(block, block->last_use);
    if (allocation.home_ == nullptr) bring_in(allocation, stream, access);
    return;
  }
  bool queued = false;
  try {
    if (access != Access::kOverwrite) queued = fill_memory(allocation, stream, *block);
  } catch (...) {
    allocator_.free(block);
    throw;
  }
  allocation.host_ = nullptr;
  allocation.block_ = block;
  allocation.pointer_ = block->ptr;
  allocation.home_ = &stream;
  allocation.unordered_ = queued;
  allocation.was_pinned_ = allocation.pinned();
  ++memory_given_;
  settle(allocation, State::kDevice);
  link(allocation);
}

/// Queues what gives new memory the allocation's contents. False if it has none.
bool Residency::fill_memory(Allocation& allocation, Stream& stream, Block& to) {
  const uint64_t bytes = allocation.size();
  switch (allocation.state()) {
    case State::kZero: {
      const uint8_t zero = 0;
      stream.fill(to.ptr, &zero, sizeof(zero), bytes);
      add(statistics_.materialized, bytes);
      return true;
    }
    case State::kHost:
    case State::kSpilled:
      copy_in(*allocation.host_, stream, to);
      add(allocation.state() == State::kHost ? statistics_.materialized : statistics_.restores, bytes);
      return true;
    case State::kArranged: {
      Work work(stream);
      allocation.arrangement_->layout().from(work, work.resolve(allocation.arrangement_->contents()), to.ptr);
      add(statistics_.relayouts, bytes);
      return true;
    }
    default:
      return false;
  }
}

/// Queues the copy to new memory of `stream`. Where the device has a stream for it, the copy waits only for what used
/// that memory before, and `stream` for the copy: the host prepares work ahead of the device, so that contents arrive
/// while earlier work computes.
void Residency::copy_in(HostBuffer& from, Stream& stream, Block& to) {
  Stream* const transfers = device_.transfer_stream();
  Stream& mover = transfers != nullptr ? *transfers : stream;
  if (from.stream != nullptr) mover.follow(*from.stream);
  order_.order_after(mover, stream, to.last_use);
  allocator_.record_stream(&to, mover);  // should anything below fail
  mover.copy_in_order(OB_HOST_TO_DEVICE, to.ptr, reinterpret_cast<uint64_t>(from.memory), from.bytes, &from);
  from.stream = &mover;
  if (&mover == &stream) return;
  stream.follow(mover);
  allocator_.forget_other_streams(&to);
  order_.mark_now_and_then(stream);
}

LazyStatistics::Gauge* Residency::gauge_of(State state) {
  switch (state) {
    case State::kZero:
      return &statistics_.zero;
    case State::kHost:
      return &statistics_.host;
    case State::kSpilled:
      return &statistics_.spilled;
    case State::kArranged:
      return &statistics_.arranged;
    default:
      return nullptr;
  }
}

void Residency::settle(Allocation& allocation, State state) noexcept {
  if (LazyStatistics::Gauge* gauge = gauge_of(allocation.state())) subtract(*gauge, allocation.size());
  if (LazyStatistics::Gauge* gauge = gauge_of(state)) add(*gauge, allocation.size());
  allocation.state_.store(state, std::memory_order_release);
}

void Residency::link(Allocation& allocation) noexcept {
  allocation.older_ = newest_;
  allocation.newer_ = nullptr;
  if (newest_ != nullptr) newest_->newer_ = &allocation;
  newest_ = &allocation;
}

void Residency::unlink(Allocation& allocation) noexcept {
  if (allocation.older_ != nullptr) allocation.older_->newer_ = allocation.newer_;
  if (allocation.newer_ != nullptr) allocation.newer_->older_ = allocation.older_;
  if (newest_ == &allocation) newest_ = allocation.older_;
}

void Residency::discard(Allocation& allocation) noexcept {
  const Guard guard(lock_);
  if (allocation.block_ != nullptr) {
    unlink(allocation);
    allocator_.free(allocation.block_, allocation.was_pinned_ ? kUnknownUse : allocation.last_use_);
  }
  allocation.block_ = nullptr;
  allocation.pointer_ = 0;
  allocation.home_ = nullptr;
  allocation.host_ = nullptr;
  settle(allocation, State::kUnbacked);
  allocation.arrangement_ = nullptr;
}

/// Whether a graph has the allocation's memory, or is being captured: then contents change in stream order only.
bool Residency::in_graph(const Allocation& allocation) const {
  if (allocation.home_ != nullptr && allocation.home_->keeps_memory()) return true;
  return Runtime::get().current_stream(device_.index()).recording() != nullptr;
}

bool Residency::mark_zero(Allocation& allocation) {
  const Guard guard(lock_);
  if (!is_lazy() || allocation.pinned() || allocation.size() == 0 || in_graph(allocation)) return false;
  discard(allocation);
  settle(allocation, State::kZero);
  return true;
}

bool Residency::adopt(Allocation& allocation, std::shared_ptr<HostBuffer> buffer) {
  const Guard guard(lock_);
  if (!is_lazy() || allocation.state() == State::kDevice || in_graph(allocation)) return false;
  allocation.arrangement_ = nullptr;
  allocation.host_ = std::move(buffer);
  settle(allocation, State::kHost);
  return true;
}

std::shared_ptr<const HostBuffer> Residency::host_contents(Allocation& allocation) {
  std::shared_ptr<HostBuffer> buffer;
  {
    const Guard guard(lock_);
    if (allocation.host_ == nullptr) return nullptr;
    buffer = allocation.host_;
    if (buffer->stream != nullptr) buffer->stream->finish();
    buffer->refuse_if_lost();
  }
  return buffer;
}

/// Whether a layout from `offset` on is of all contents of an allocation, which may then be kept in it. For a graph
/// they may not: they are brought there at each replay, which finds what there is then.
bool Residency::is_whole(const Allocation& allocation, uint64_t offset, const MemoryLayout& layout, const Work& work) {
  return offset == 0 && layout.strided_bytes() == allocation.size() && work.stream().recording() == nullptr;
}

Allocation* Residency::to_layout(Allocation& allocation, uint64_t offset,
                                 const std::shared_ptr<const MemoryLayout>& layout, Work& work) {
  const Guard guard(lock_);
  const bool whole = is_whole(allocation, offset, *layout, work);
  const std::shared_ptr<const Arrangement>& known = allocation.arrangement_;
  if (whole && known != nullptr && known->layout().is_same(*layout)) {
    known->contents().retain();
    return &known->contents();
  }
  const auto release = [](Allocation* made) { made->release(); };
  std::unique_ptr<Allocation, decltype(release)> made(Allocation::create_internal(device_, layout->bytes()), release);
  const ob_ptr strided = work.resolve(allocation, Access::kRead) + offset;
  layout->to(work, strided, work.resolve(*made, Access::kOverwrite));
  made->unordered_ = true;  // other streams may read the tensor, and know nothing of this
  add(statistics_.relayouts, layout->strided_bytes());
  if (whole) {
    made->retain();
    arrange(allocation, std::make_shared<const Arrangement>(layout, *made));
  }
  return made.release();
}

void Residency::from_layout(Allocation& arranged, Allocation& allocation, uint64_t offset,
                            const std::shared_ptr<const MemoryLayout>& layout, Work& work) {
  const Guard guard(lock_);
  const bool whole = is_whole(allocation, offset, *layout, work);
  if (whole) {
    arranged.retain();
    if (arrange(allocation, std::make_shared<const Arrangement>(layout, arranged))) return;
  }
  const ob_ptr source = work.resolve(arranged);
  layout->from(work, source, work.resolve(allocation, whole ? Access::kOverwrite : Access::kKeep) + offset);
  add(statistics_.relayouts, layout->strided_bytes());
}

/// Keeps contents in a layout, and gives their memory up. False, and nothing is done, if that has to stay.
bool Residency::arrange(Allocation& allocation, std::shared_ptr<const Arrangement> arrangement) {
  if (!is_lazy() || allocation.pinned() || in_graph(allocation)) return false;
  keep_arranged(allocation, std::move(arrangement));
  return true;
}

void Residency::keep_arranged(Allocation& allocation, std::shared_ptr<const Arrangement> arrangement) noexcept {
  discard(allocation);
  allocation.arrangement_ = std::move(arrangement);
  settle(allocation, State::kArranged);
}

std::shared_ptr<HostBuffer> Residency::buffer_for(uint64_t bytes, Stream* stream) {
  return {buffers_.take(bytes, stream), [this](HostBuffer* buffer) {
            if (in_forked_child.load(std::memory_order_relaxed)) return;
            const Guard guard(lock_);
            buffers_.give_back(buffer);
          }};
}

std::shared_ptr<HostBuffer> Residency::host_buffer(uint64_t bytes) {
  const Guard guard(lock_);
  return buffer_for(bytes, nullptr);
}

/// The allocation used longest ago that neither the work in preparation nor a pin needs; small ones only if there is
/// nothing else, because moving them costs as much as moving larger ones and gains nothing.
Residency::Search Residency::search() const {
  Allocation* oldest = nullptr;
  Allocation* oldest_large = nullptr;
  bool busy = false;
  for (Allocation* candidate = newest_; candidate != nullptr; candidate = candidate->older_) {
    if (candidate->last_use_ == order_.current()) continue;
    const bool in_a_call = candidate->pins_.load(std::memory_order_acquire) != 0;  // read once: it may end any time
    busy = busy || in_a_call;
    if (in_a_call || candidate->holds() != 0 || candidate->home_->keeps_memory()) continue;
    Allocation*& best = candidate->size() >= kWorthMoving ? oldest_large : oldest;
    if (best == nullptr || candidate->last_use_ < best->last_use_) best = candidate;
  }
  return {oldest_large != nullptr ? oldest_large : oldest, busy};
}

/// Gives the lock up for a while. What the work in preparation has resolved stays where it is, whoever else uses it.
void Residency::let_others_work() {
  const uint64_t mine = order_.current();
  std::vector<Allocation*> used;
  for (Allocation* each = newest_; each != nullptr; each = each->older_) {
    if (each->last_use_ == mine) used.push_back(each);
  }
  for (Allocation* each : used) each->pins_.fetch_add(1, std::memory_order_relaxed);
  order_.let_others_work(kPatience);
  for (Allocation* each : used) {
    each->unpin();
    each->last_use_ = mine;
  }
}

bool Residency::make_room() {
  const Guard guard(lock_);
  for (int attempt = 0;; ++attempt) {
    const Search found = search();
    if (found.victim != nullptr) {
      spill(*found.victim);
      return true;
    }
    if (!found.busy || attempt == kAttempts) return false;
    let_others_work();
  }
}

/// Queues the copy to the host behind all work that uses the memory, and frees the memory in the order of its stream.
/// Where the device has a stream for it, work that does not need the memory does not wait. Nothing changes if it
/// throws. What is in a layout, too, stays in that alone.
void Residency::spill(Allocation& allocation) {
  if (allocation.arrangement_ != nullptr) return keep_arranged(allocation, allocation.arrangement_);
  Stream& home = *allocation.home_;
  Stream* const transfers = device_.transfer_stream();
  Stream& mover = transfers != nullptr ? *transfers : home;
  const uint64_t last_use = allocation.was_pinned_ ? kUnknownUse : allocation.last_use_;
  order_.order_after(mover, home, last_use);
  for (Stream* other : allocator_.other_streams(allocation.block_)) order_.order_after(mover, *other, last_use);
  std::shared_ptr<HostBuffer> buffer = buffer_for(allocation.size(), &mover);
  mover.copy_in_order(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(buffer->memory), allocation.pointer_,
                      allocation.size(), buffer.get());
  allocator_.forget_other_streams(allocation.block_);
  allocator_.record_stream(allocation.block_, mover);
  discard(allocation);
  allocation.host_ = std::move(buffer);
  settle(allocation, State::kSpilled);
  add(statistics_.spills, allocation.size());
}

void Residency::empty_cache() {
  const Guard guard(lock_);
  buffers_.trim(0, /*wait=*/true);
  order_.forget_marks();
}

LazyStatistics Residency::statistics() const {
  const Guard guard(lock_);
  LazyStatistics all = statistics_;
  AddressSpace::get().for_each(device_, [&](const Allocation& allocation) {
    if (allocation.state() == State::kUnbacked) add(all.unbacked, allocation.size());
  });
  return all;
}

void Residency::reset_accumulated() {
  const Guard guard(lock_);
  statistics_.materialized = statistics_.spills = statistics_.restores = statistics_.relayouts = {};
}

}  // namespace outboard
