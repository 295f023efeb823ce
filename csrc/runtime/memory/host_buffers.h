// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

namespace outboard {

class Device;
class Event;
class Stream;

/// Host memory that stands in for device memory: page-locked where the driver can.
struct HostBuffer {
  void* memory = nullptr;
  uint64_t bytes = 0;  ///< of contents
  uint64_t capacity = 0;
  Stream* stream = nullptr;  ///< whose queued work may still read or write it; nullptr: none
  uint64_t number = 0;       ///< of its return, among those of all buffers
  bool from_driver = false;
  std::atomic<bool> lost{false};  ///< the copy that was to fill it failed

  /// Throws Error if its contents are not what they were to be.
  void refuse_if_lost() const;
};

/// A device's host buffers, reused by size. A stream that always has work must not keep what its earlier work used:
/// points of the stream tell when that work was done. Not thread-safe: guarded by the device's memory lock.
class HostBuffers {
 public:
  explicit HostBuffers(Device& device);
  ~HostBuffers();

  /// A buffer for queued work of `stream`, or, with nullptr, for the host at once. Throws OutOfMemoryError.
  HostBuffer* take(uint64_t bytes, Stream* stream);
  /// The work that uses the buffer has been submitted.
  void give_back(HostBuffer* buffer) noexcept;
  /// Returns buffers that nobody uses to the system, oldest first, until at most `kept` bytes remain. With `wait`,
  /// waits for queued work that still uses them; without, such buffers stay.
  void trim(uint64_t kept, bool wait);

 private:
  /// A point of a stream behind the work of buffers up to a number.
  struct Mark {
    Stream* stream;
    uint64_t number;
    std::unique_ptr<Event> event;
  };
  /// Buffers that a stream may still use, oldest first, and what came back since its last mark.
  struct Busy {
    std::deque<HostBuffer*> buffers;
    uint64_t bytes = 0;
    uint64_t unmarked = 0, unmarked_bytes = 0;
  };

  HostBuffer* make(uint64_t bytes, uint64_t capacity);
  HostBuffer* take_idle(uint64_t capacity);
  HostBuffer* take_in_order(uint64_t capacity, Stream& stream);
  void become_idle(HostBuffer* buffer);
  void become_idle(Stream& stream, Busy& busy, uint64_t number);
  void mark(Stream& stream, Busy& busy);
  void collect();
  void wait_for_oldest();
  void destroy(HostBuffer* buffer) noexcept;

  Device& device_;
  std::map<uint64_t, std::vector<HostBuffer*>> idle_;  // by capacity, oldest first
  std::map<Stream*, Busy> busy_;
  std::deque<Mark> marks_;  // oldest first
  uint64_t idle_bytes_ = 0, busy_bytes_ = 0;
  uint64_t returns_ = 0;
};

}  // namespace outboard
