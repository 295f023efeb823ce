// SPDX-License-Identifier: Apache-2.0
#include "runtime/host_buffers.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "runtime/device.h"
#include "runtime/driver_call.h"

namespace outboard {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kKeptBytes = uint64_t{256} << 20;  // idle buffers beyond this go back to the system

/// Eight sizes per octave, so that a buffer serves requests of nearly its size.
uint64_t capacity_of(uint64_t bytes) {
  uint64_t step = kPage;
  while (step * 16 < bytes) step *= 2;
  return (std::max<uint64_t>(bytes, 1) + step - 1) / step * step;
}

}  // namespace

HostBuffer* HostBuffers::take(uint64_t bytes, Stream* stream) {
  const uint64_t capacity = capacity_of(bytes);
  // The host may be far ahead of the device: it waits rather than have buffers in flight without end.
  const bool patient = cached_bytes_ > kKeptBytes;
  for (size_t i = cached_.size(); i-- > 0;) {
    HostBuffer* buffer = cached_[i];
    if (buffer->capacity != capacity) continue;
    const bool in_order = buffer->stream == nullptr || buffer->stream == stream;
    if (!in_order && patient) buffer->stream->finish_in_the_end();
    if (!in_order && !buffer->stream->surely_finished()) continue;
    cached_.erase(cached_.begin() + static_cast<std::ptrdiff_t>(i));
    cached_bytes_ -= capacity;
    buffer->bytes = bytes;
    buffer->stream = stream;
    return buffer;
  }
  HostBuffer* buffer = make(bytes, capacity);
  buffer->stream = stream;
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
    buffer->memory = std::aligned_alloc(kPage, capacity);
  }
  if (buffer->memory == nullptr) {
    throw OutOfMemoryError("the host has no memory left for " + std::to_string(bytes) + " bytes of device " +
                           std::to_string(device_.index()));
  }
  return buffer.release();
}

void HostBuffers::give_back(HostBuffer* buffer) noexcept {
  try {
    cached_.push_back(buffer);
    cached_bytes_ += buffer->capacity;
    trim(kKeptBytes, false);
  } catch (const std::exception& error) {
    // Only the next `trim` is missed. A buffer whose stream cannot tell whether it is done stays cached.
    std::fprintf(stderr, "outboard: %s\n", error.what());
  }
}

void HostBuffers::trim(uint64_t kept, bool wait) {
  for (size_t i = 0; cached_bytes_ > kept && i < cached_.size();) {
    HostBuffer* buffer = cached_[i];
    if (buffer->stream != nullptr && wait) buffer->stream->finish();
    if (buffer->stream != nullptr && !buffer->stream->surely_finished()) {
      ++i;
      continue;
    }
    cached_.erase(cached_.begin() + static_cast<std::ptrdiff_t>(i));
    cached_bytes_ -= buffer->capacity;
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
