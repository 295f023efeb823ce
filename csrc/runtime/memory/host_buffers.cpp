// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/host_buffers.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "runtime/base/driver_call.h"
#include "runtime/device.h"

namespace outboard {
namespace {

constexpr uint64_t kPage = 4096;
/// What vectors of the host need. Whole pages would leave as much again unused between them.
constexpr size_t kAlignment = 64;
constexpr uint64_t kKeptBytes = uint64_t{256} << 20;  // buffers beyond this go back to the system, or are waited for
/// A stream is marked after so much came back: marking costs about as much as a launch.
constexpr uint64_t kMarkEvery = 32;
constexpr uint64_t kMarkEveryBytes = uint64_t{1} << 20;

/// Eight sizes per octave, so that a buffer serves requests of nearly its size.
uint64_t capacity_of(uint64_t bytes) {
  uint64_t step = kPage;
  while (step * 16 < bytes) step *= 2;
  return (std::max<uint64_t>(bytes, 1) + step - 1) / step * step;
}

}  // namespace

void HostBuffer::refuse_if_lost() const {
  if (!lost) return;
  throw Error(OB_INTERNAL, "what a tensor held is lost, because moving it out of the device's memory failed");
}

HostBuffers::HostBuffers(Device& device) : device_(device) {}
HostBuffers::~HostBuffers() = default;

HostBuffer* HostBuffers::take(uint64_t bytes, Stream* stream) {
  const uint64_t capacity = capacity_of(bytes);
  collect();
  HostBuffer* buffer = take_idle(capacity);
  if (buffer == nullptr && stream != nullptr) buffer = take_in_order(capacity, *stream);
  // The host may be far ahead of the device: it waits rather than have buffers in flight without end.
  while (buffer == nullptr && busy_bytes_ > kKeptBytes) {
    wait_for_oldest();
    buffer = take_idle(capacity);
  }
  if (buffer == nullptr) buffer = make(bytes, capacity);
  buffer->bytes = bytes;
  buffer->stream = stream;
  if (stream == nullptr) buffer->lost = false;  // else for the copy to say, when it is its turn
  return buffer;
}

HostBuffer* HostBuffers::take_idle(uint64_t capacity) {
  const auto found = idle_.find(capacity);
  if (found == idle_.end()) return nullptr;
  HostBuffer* buffer = found->second.back();
  found->second.pop_back();
  if (found->second.empty()) idle_.erase(found);
  idle_bytes_ -= capacity;
  return buffer;
}

/// A buffer that earlier work of the same stream uses.
HostBuffer* HostBuffers::take_in_order(uint64_t capacity, Stream& stream) {
  const auto busy = busy_.find(&stream);
  if (busy == busy_.end()) return nullptr;
  std::deque<HostBuffer*>& all = busy->second.buffers;
  const auto fits = [&](const HostBuffer* buffer) { return buffer->capacity == capacity; };
  const auto found = std::find_if(all.rbegin(), all.rend(), fits);
  if (found == all.rend()) return nullptr;
  HostBuffer* buffer = *found;
  all.erase(std::next(found).base());
  busy->second.bytes -= capacity;
  busy_bytes_ -= capacity;
  return buffer;
}

HostBuffer* HostBuffers::make(uint64_t bytes, uint64_t capacity) {
  auto buffer = std::make_unique<HostBuffer>();
  const DeviceDriver& driver = device_.driver();
  buffer->bytes = bytes;
  buffer->capacity = capacity;
  buffer->from_driver = has_host_memory(driver);
  if (buffer->from_driver) {
    check(driver, driver.host_alloc(device_.handle(), capacity, &buffer->memory), "allocating page-locked memory");
  } else {
    buffer->memory = std::aligned_alloc(kAlignment, capacity);
  }
  if (buffer->memory == nullptr) {
    throw OutOfMemoryError("the host has no memory left for " + std::to_string(bytes) + " bytes of device " +
                           std::to_string(device_.index()));
  }
  return buffer.release();
}

void HostBuffers::give_back(HostBuffer* buffer) noexcept {
  try {
    buffer->number = ++returns_;
    if (buffer->stream == nullptr) {
      become_idle(buffer);
    } else {
      Busy& busy = busy_[buffer->stream];
      busy.buffers.push_back(buffer);
      busy.bytes += buffer->capacity;
      busy_bytes_ += buffer->capacity;
      ++busy.unmarked;
      busy.unmarked_bytes += buffer->capacity;
      if (busy.unmarked >= kMarkEvery || busy.unmarked_bytes >= kMarkEveryBytes) mark(*buffer->stream, busy);
    }
    trim(kKeptBytes, false);
  } catch (const std::exception& error) {
    // Only the next `trim` is missed. A buffer whose stream cannot tell whether it is done stays cached.
    std::fprintf(stderr, "outboard: %s\n", error.what());
  }
}

void HostBuffers::become_idle(HostBuffer* buffer) {
  buffer->stream = nullptr;
  idle_[buffer->capacity].push_back(buffer);
  idle_bytes_ += buffer->capacity;
}

/// The stream has done the work of its buffers up to `number`.
void HostBuffers::become_idle(Stream& stream, Busy& busy, uint64_t number) {
  while (!busy.buffers.empty() && busy.buffers.front()->number <= number) {
    HostBuffer* buffer = busy.buffers.front();
    busy.buffers.pop_front();
    busy.bytes -= buffer->capacity;
    busy_bytes_ -= buffer->capacity;
    become_idle(buffer);
  }
  if (busy.buffers.empty()) busy_.erase(&stream);
}

void HostBuffers::mark(Stream& stream, Busy& busy) {
  busy.unmarked = busy.unmarked_bytes = 0;
  auto event = std::make_unique<Event>(device_);
  event->record(stream);
  marks_.push_back({&stream, returns_, std::move(event)});
}

/// Finds out which buffers are not used any more.
void HostBuffers::collect() {
  for (auto each = busy_.begin(); each != busy_.end();) {
    const auto next = std::next(each);
    if (each->first->surely_finished()) become_idle(*each->first, each->second, returns_);
    each = next;
  }
  if (busy_.empty()) marks_.clear();
  for (auto each = marks_.begin(); each != marks_.end() && each->event->surely_reached(); each = marks_.erase(each)) {
    const auto busy = busy_.find(each->stream);
    if (busy != busy_.end()) become_idle(*busy->first, busy->second, each->number);
  }
}

void HostBuffers::wait_for_oldest() {
  if (!marks_.empty()) {
    marks_.front().event->finish_in_the_end();
  } else {
    busy_.begin()->first->finish();
  }
  collect();
}

void HostBuffers::trim(uint64_t kept, bool wait) {
  if (idle_bytes_ + busy_bytes_ <= kept) return;
  if (wait) {
    // A failure there is reported to callers that need the work, not here.
    for (const auto& [stream, busy] : busy_) stream->finish_in_the_end();
  }
  collect();
  while (!idle_.empty() && idle_bytes_ + busy_bytes_ > kept) {
    const auto older = [](const auto& a, const auto& b) { return a.second.front()->number < b.second.front()->number; };
    const auto oldest = std::min_element(idle_.begin(), idle_.end(), older);
    HostBuffer* buffer = oldest->second.front();
    oldest->second.erase(oldest->second.begin());
    if (oldest->second.empty()) idle_.erase(oldest);
    idle_bytes_ -= buffer->capacity;
    destroy(buffer);
  }
}

void HostBuffers::destroy(HostBuffer* buffer) noexcept {
  if (!buffer->from_driver) std::free(buffer->memory);
  if (buffer->from_driver && device_.driver().host_free(device_.handle(), buffer->memory) != OB_OK) {
    std::fprintf(stderr, "outboard: freeing page-locked memory failed: %s\n", device_.driver().last_error());
  }
  delete buffer;
}

}  // namespace outboard
