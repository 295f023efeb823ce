// SPDX-License-Identifier: Apache-2.0
#include "runtime/residency.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "runtime/address_space.h"
#include "runtime/allocation.h"
#include "runtime/device.h"
#include "runtime/driver_call.h"
#include "runtime/graph.h"

namespace outboard {
namespace {

using Guard = std::lock_guard<MemoryLock>;

/// Work that finds everything in use by others looks again this often, this many times: library calls of other
/// threads pin what they use, and are done sooner or later.
constexpr std::chrono::milliseconds kPatience{1};
constexpr int kAttempts = 500;

constexpr size_t kMarks = 64;  // points of streams to remember

constexpr uint64_t kWorthMoving = uint64_t{64} << 10;  // bytes

void add(LazyStatistics::Gauge& gauge, uint64_t bytes) {
  gauge.bytes += static_cast<int64_t>(bytes);
  ++gauge.count;
}

void subtract(LazyStatistics::Gauge& gauge, uint64_t bytes) {
  gauge.bytes -= static_cast<int64_t>(bytes);
  --gauge.count;
}

/// Makes later work of `stream` wait for the work of `earlier` so far.
void order_after(Stream& stream, Stream& earlier) {
  if (&stream == &earlier || earlier.query()) return;
  Event event(earlier.device());
  event.record(earlier);
  stream.wait(event);
}

}  // namespace

bool is_lazy() {
  static const bool lazy = [] {
    const char* text = std::getenv("OUTBOARD_LAZY");
    return text == nullptr || std::strcmp(text, "0") != 0;
  }();
  return lazy;
}

Residency::Residency(Device& device) : device_(device), buffers_(device) {}
Residency::~Residency() = default;

uint64_t Residency::begin_work() {
  lock_.lock();
  // Work within work has the outer one's number: what either uses must stay.
  if (lock_.outermost()) current_ = ++begun_;
  return current_;
}

ob_ptr Residency::resolve(Allocation& allocation, Stream& stream, Access access) {
  if (&allocation.device() != &device_ || &stream.device() != &device_) {
    throw Error(OB_INVALID_ARGUMENT, "memory of device " + std::to_string(allocation.device().index()) +
                                         " was given to work on device " + std::to_string(stream.device().index()));
  }
  if (allocation.size() == 0) return 0;
  // Contents that are there before a graph is captured are no part of it.
  const bool outside = stream.recording() != nullptr && allocation.state() != State::kUnbacked;
  if (allocation.home_ == nullptr) bring_in(allocation, outside ? stream.actual() : stream, access);
  if (allocation.home_ != &stream) share(allocation, stream);
  return allocation.pointer_;
}

/// Lets work of a second stream use memory: it waits for what still fills the memory, and the memory for it.
void Residency::share(Allocation& allocation, Stream& stream) {
  if (Recording* recording = stream.recording()) return recording->keep(allocation);
  const bool first_time = device_.allocator().record_stream(allocation.block_, stream);
  if (!allocation.unordered_) return;
  if (allocation.home_->query()) {
    allocation.unordered_ = false;
  } else if (first_time) {
    order_after(stream, *allocation.home_);
  }
}

void Residency::bring_in(Allocation& allocation, Stream& stream, Access access) {
  Block* block = device_.allocator().allocate(allocation.size(), stream);
  bool queued = false;
  try {
    if (access == Access::kKeep) queued = fill_memory(allocation, stream, block->ptr);
  } catch (...) {
    device_.allocator().free(block);
    throw;
  }
  if (allocation.host_ != nullptr) {
    allocation.host_->stream = queued ? &stream : allocation.host_->stream;
    allocation.host_ = nullptr;
  }
  allocation.block_ = block;
  allocation.pointer_ = block->ptr;
  allocation.home_ = &stream;
  allocation.unordered_ = queued;
  allocation.was_pinned_ = false;
  settle(allocation, State::kDevice);
  link(allocation);
}

/// Queues what gives new memory the allocation's contents. False if it has none.
bool Residency::fill_memory(Allocation& allocation, Stream& stream, ob_ptr to) {
  const uint64_t bytes = allocation.size();
  switch (allocation.state()) {
    case State::kZero: {
      const uint8_t zero = 0;
      stream.fill(to, &zero, sizeof(zero), bytes);
      add(statistics_.materialized, bytes);
      return true;
    }
    case State::kHost:
    case State::kSpilled: {
      const HostBuffer& from = *allocation.host_;
      if (from.stream != nullptr) order_after(stream, *from.stream);
      stream.copy(OB_HOST_TO_DEVICE, to, reinterpret_cast<uint64_t>(from.memory), bytes);
      add(allocation.state() == State::kHost ? statistics_.materialized : statistics_.restores, bytes);
      return true;
    }
    default:
      return false;
  }
}

LazyStatistics::Gauge* Residency::gauge_of(State state) {
  switch (state) {
    case State::kZero:
      return &statistics_.zero;
    case State::kHost:
      return &statistics_.host;
    case State::kSpilled:
      return &statistics_.spilled;
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
    device_.allocator().free(allocation.block_);
  }
  allocation.block_ = nullptr;
  allocation.pointer_ = 0;
  allocation.home_ = nullptr;
  allocation.host_ = nullptr;
  settle(allocation, State::kUnbacked);
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
  }
  return buffer;
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

/// The number of the oldest work that may still submit something.
uint64_t Residency::first_unfinished() const {
  uint64_t first = current_;
  for (const uint64_t work : waiting_) first = std::min(first, work);
  return first;
}

/// The allocation used longest ago that no work in preparation and no pin needs; small ones only if there is nothing
/// else, because moving them costs as much as moving larger ones and gains nothing.
Allocation* Residency::victim() {
  const uint64_t protected_from = first_unfinished();
  Allocation* oldest = nullptr;
  Allocation* oldest_large = nullptr;
  for (Allocation* candidate = newest_; candidate != nullptr; candidate = candidate->older_) {
    if (candidate->last_use_ >= protected_from || candidate->pinned() || candidate->home_->keeps_memory()) continue;
    Allocation*& best = candidate->size() >= kWorthMoving ? oldest_large : oldest;
    if (best == nullptr || candidate->last_use_ < best->last_use_) best = candidate;
  }
  return oldest_large != nullptr ? oldest_large : oldest;
}

/// Whether library calls or work of other threads keep memory that they will free.
bool Residency::others_are_at_work() const {
  if (!waiting_.empty()) return true;
  for (const Allocation* other = newest_; other != nullptr; other = other->older_) {
    if (other->last_use_ < current_ && other->pins_.load(std::memory_order_acquire) != 0) return true;
  }
  return false;
}

void Residency::let_others_work() {
  const uint64_t mine = current_;
  waiting_.push_back(mine);
  lock_.yield_for(kPatience);
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), mine));
  current_ = mine;
}

bool Residency::make_room() {
  for (int attempt = 0;; ++attempt) {
    if (Allocation* found = victim()) {
      spill(*found);
      return true;
    }
    if (!others_are_at_work() || attempt == kAttempts) return false;
    let_others_work();
  }
}

/// Makes `stream` wait for the uses of an allocation by `user`, and for as little else of that stream's work as is
/// known: what is moved out was mostly used long ago, and an earlier move left a mark behind it.
void Residency::order_after_uses(Stream& stream, const Allocation& allocation, Stream& user) {
  if (&stream == &user) return;
  for (const Mark& mark : marks_) {
    const bool behind = mark.stream == &user && mark.number > allocation.last_use_ && !allocation.was_pinned_;
    if (behind) return mark.event->query() ? void() : stream.wait(*mark.event);
  }
  if (user.query()) return;
  Mark mark{&user, first_unfinished(), std::make_unique<Event>(device_)};
  mark.event->record(user);
  stream.wait(*mark.event);
  marks_.push_back(std::move(mark));
  if (marks_.size() > kMarks) marks_.pop_front();
}

/// Queues the copy to the host behind all work that uses the memory, and frees the memory in the order of its stream.
/// Where the device has a stream for it, work that does not need the memory does not wait. Nothing changes if it
/// throws.
void Residency::spill(Allocation& allocation) {
  Stream& home = *allocation.home_;
  Stream* const transfers = device_.transfer_stream();
  Stream& mover = transfers != nullptr ? *transfers : home;
  order_after_uses(mover, allocation, home);
  for (Stream* other : device_.allocator().other_streams(allocation.block_)) {
    order_after_uses(mover, allocation, *other);
  }
  std::shared_ptr<HostBuffer> buffer = buffer_for(allocation.size(), &mover);
  mover.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(buffer->memory), allocation.pointer_, allocation.size());
  device_.allocator().forget_other_streams(allocation.block_);
  device_.allocator().record_stream(allocation.block_, mover);
  discard(allocation);
  allocation.host_ = std::move(buffer);
  settle(allocation, State::kSpilled);
  add(statistics_.spills, allocation.size());
}

void Residency::empty_cache() {
  const Guard guard(lock_);
  buffers_.trim(0, /*wait=*/true);
}

LazyStatistics Residency::statistics() const {
  LazyStatistics all;
  AddressSpace::get().for_each([&](const Allocation& allocation) {
    if (&allocation.device() == &device_ && allocation.state() == State::kUnbacked)
      add(all.unbacked, allocation.size());
  });
  const Guard guard(lock_);
  const LazyStatistics::Gauge unbacked = all.unbacked;
  all = statistics_;
  all.unbacked = unbacked;
  return all;
}

void Residency::reset_accumulated() {
  const Guard guard(lock_);
  statistics_.materialized = statistics_.spills = statistics_.restores = LazyStatistics::Gauge{};
}

}  // namespace outboard
