// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "outboard/driver.h"
#include "runtime/streams/submission.h"

namespace outboard {

class Device;
class DriverCollective;
class Event;
class LibraryWork;
class Recording;
class Traced;
struct DeviceDriver;
struct TracedWork;
struct HostBuffer;

/// An in-order queue of a device. All methods may be called from several threads.
/// Every method throws Error when the driver reports one, and in a forked child. A launch is handed to the driver
/// later, by another thread, which waits for the kernel to be built: a failure of either is thrown by the next call
/// that submits or waits. With OUTBOARD_LAUNCH_BLOCKING=1 a launch is handed over and waited for before it returns, to
/// find the one that fails.
class Stream {
 public:
  Stream(Device& device, int64_t id);
  /// A stream without a queue of its own, for capturing graphs: what is submitted to it is recorded, or goes to the
  /// stream that it stands for.
  Stream(Device& device, int64_t id, Stream& origin);

  Device& device() const { return device_; }
  int64_t id() const { return id_; }
  ob_stream handle() const { return handle_; }

  void launch(const Launch& launch);
  /// The same for a function of the driver's library.
  void call(std::shared_ptr<const LibraryWork> work);
  /// The same for this process's part of a collective, which cannot be recorded. What comes behind it waits until its
  /// communicator is there; the caller does not.
  void collective(std::shared_ptr<DriverCollective> work);
  /// Host memory is the caller's again when the driver says so (see driver.h).
  void copy(ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes);
  /// The same for host memory that stays valid until the stream gets there: nothing is waited for.
  /// `buffer`, whose memory it is, hears of a copy to it that fails, and what it lost is not copied from it.
  void copy_in_order(ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes, HostBuffer* buffer = nullptr);
  /// To memory of another device of the same driver, whose work that uses it has been waited for. The driver has
  /// `copy_peer`.
  void copy_peer(Device& target, ob_ptr dst, ob_ptr src, uint64_t bytes);
  void fill(ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes);
  /// Later work waits for the work before the event, and a wait for it reports what failed there.
  void wait(const Event& event);
  /// The same for all work of another stream so far.
  void follow(Stream& earlier);
  /// Submits what the driver holds as a graph, which stays until the stream gets there.
  void launch_graph(void* graph);

  // ---- of streams that capture graphs (see Graph) ----

  /// Where work is recorded instead of run, or nullptr.
  Recording* recording() const { return recording_; }
  void record_to(Recording* recording);
  /// Where work that is not recorded goes from now on, behind what went elsewhere before.
  void stand_for(Stream& origin);
  /// The stream that has the work: itself, unless it stands for another.
  Stream& actual() { return origin_ == nullptr ? *this : *origin_; }
  /// Whether a living graph needs the memory that was taken on this stream.
  bool keeps_memory() const { return keeps_memory_.load(std::memory_order_acquire); }
  void keep_memory(bool keep) { keeps_memory_.store(keep, std::memory_order_release); }

  /// Waits, without the memory lock, until there is room for a piece of work. Returns the stream.
  Stream& wait_for_room() {
    if (recording_ == nullptr) actual().queue_.wait_for_room();
    return *this;
  }
  /// Waits until the driver has everything submitted so far. For code that talks to the driver about this stream.
  void flush();
  /// Hands over what is left and submits on the calling threads from now on; at the end of the process.
  void stop() noexcept { queue_.stop(); }
  /// The same, and leaves out what the driver does not have yet.
  void abandon() noexcept { queue_.abandon(); }

  /// Waits until everything submitted so far is finished, and throws what its kernels found wrong with their inputs
  /// (Assertions). Free of driver calls when nothing is outstanding.
  void synchronize();
  /// The same without looking for failed assertions: for waits that nobody asked for, which must not raise in the
  /// middle of something else.
  void finish();
  /// Waits whatever comes: failures on the way are kept for the next who submits or waits. False if no wait succeeded,
  /// as on a lost device: then queued work may still use anybody's memory, for ever.
  bool finish_in_the_end() noexcept;
  /// For who failed to copy from or to memory of the host, or to wait for that: waits, or, if that fails too, keeps
  /// `memory` until a later wait succeeds.
  void keep_until_finished(std::shared_ptr<const void> memory) noexcept;
  /// How many pieces of memory are kept so.
  size_t kept() const;
  /// Frees them if a wait for the stream succeeded since, or its device was reset.
  void let_go_of_kept();
  /// As `query`, except that a failure is kept for the next call that submits or waits: for callers in the
  /// middle of something else.
  bool surely_finished() noexcept;
  /// From here to `take_back`, other code submits to the driver's stream directly: it may have work at any time.
  void lend() { lent_.fetch_add(1, std::memory_order_release); }
  void take_back() {
    submitted_.fetch_add(1, std::memory_order_release);
    lent_.fetch_sub(1, std::memory_order_release);
  }
  /// Tells that what was submitted last may fail assertions.
  void expect_assertions();
  /// True if nothing is outstanding.
  bool query();
  /// Runs `function` on the host after all submitted work and before any later work, on the calling thread.
  void run_on_host(const std::function<void()>& function);

 private:
  friend class Event;

  template <typename Command>
  void submit(TracedWork work, Command command, bool may_run_at_once = true);
  void hand_over(const SubmissionQueue::Command& command, bool may_run_at_once);
  void launch_traced(const Launch& launch);
  ob_status wait_for_driver() const;
  bool idle() const;
  void finished(uint64_t count);

  Device& device_;
  int64_t id_;
  Stream* origin_ = nullptr;
  Recording* recording_ = nullptr;
  std::atomic<bool> keeps_memory_{false};
  ob_stream handle_ = nullptr;
  SubmissionQueue queue_;
  // Commands handed to the driver, and how many of them are known to be finished. A command is counted after the
  // driver has it: a wait that begins at count n covers at least the first n.
  std::atomic<uint64_t> submitted_{0};
  std::atomic<uint64_t> finished_{0};
  std::atomic<uint32_t> lent_{0};  // to how many
  mutable std::mutex kept_mutex_;
  std::vector<std::shared_ptr<const void>> kept_;
  std::atomic<bool> asserts_{false};  // work submitted since the last report may have failed assertions
};

/// Runs what has the device copy from or to `memory`, and waits for it. If that fails, the copy may be queued or even
/// under way: a copy of `memory`, which owns what is copied, is kept until it is not.
template <typename Memory, typename Function>
void lending(Stream& stream, const Memory& memory, const Function& function) {
  try {
    function();
  } catch (...) {
    stream.keep_until_finished(std::make_shared<Memory>(memory));
    throw;
  }
}

/// Owner of a driver's event.
class EventHandle {
 public:
  explicit EventHandle(Device& device);
  ~EventHandle();
  EventHandle(const EventHandle&) = delete;
  EventHandle& operator=(const EventHandle&) = delete;

  ob_event get() const { return event_; }
  /// What had failed in the stream when the event was recorded, or nullptr.
  std::shared_ptr<Failure> failure() const;
  void set_failure(std::shared_ptr<Failure> failure);

 private:
  const DeviceDriver& driver_;
  ob_event event_ = nullptr;
  mutable std::mutex mutex_;
  std::shared_ptr<Failure> failure_;
};

/// A point in a stream, with a timestamp. It may be destroyed while streams still wait for it.
class Event {
 public:
  explicit Event(Device& device);
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  Device& device() const { return device_; }
  void record(Stream& stream);
  bool recorded() const { return recorded_; }
  /// Waits, and throws what the work before the event found wrong with its inputs.
  void synchronize();
  /// Waits without looking for failed assertions, as `Stream::finish`.
  void finish();
  bool query();
  /// As `query`, and false as long as nobody can tell: what failed is for the streams' own waits to report. An event
  /// that a failure came before never says that it is reached, so it moves behind what its stream was given since.
  bool surely_reached() noexcept;
  /// The driver's event.
  const EventHandle& handle() const { return *point_.handle; }
  /// Waits until it is reached; what failed on the way is for the streams' own waits to report. Throws Error only if
  /// nobody can tell, as on a lost device.
  void finish_in_the_end();
  /// Milliseconds from this event to `end`. Throws Error(OB_INVALID_ARGUMENT) if either was not recorded.
  double elapsed_ms(const Event& end) const;

 private:
  friend class Stream;

  /// Where it was recorded last: at a place of a stream's queue, whose thread tells the driver when it gets there.
  struct Point {
    std::shared_ptr<EventHandle> handle;
    Stream* stream;  // nullptr: nowhere yet
    uint64_t place;

    bool handed_over() const;
    void wait_until_handed_over() const;
  };

  Point point() const;

  Device& device_;
  mutable std::mutex mutex_;  // guards point_
  Point point_;
  std::atomic<bool> recorded_{false};
  std::atomic<bool> asserts_{false};  // the work before it may have failed assertions
};

}  // namespace outboard
