// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "outboard/driver.h"

namespace outboard {

class EventHandle;
class Stream;
struct DeviceDriver;

/// One piece of a stream's work, and when the device did it. Times are nanoseconds since the epoch on the host's clock.
struct TracedWork {
  enum class Kind { kKernel, kCopy, kFill, kGraph, kCollective };

  Kind kind = Kind::kKernel;
  std::string name;                              ///< of a kernel or a collective
  std::array<uint64_t, 3> global{};              ///< of a kernel
  std::array<uint32_t, 3> local{};               ///< of a kernel
  ob_copy_kind direction = OB_DEVICE_TO_DEVICE;  ///< of a copy
  uint64_t bytes = 0;                            ///< of a copy, a fill or a collective
  int device = 0;                                ///< index
  int64_t stream = 0;                            ///< id
  uint64_t operation = 0;                        ///< the innermost that the thread was in (push_traced_operation), or 0
  uint64_t range = 0;                            ///< the same for ranges of the user's (push_traced_range)
  int64_t thread = 0;                            ///< the system's number of the thread that submitted it
  int64_t submit_begin = 0, submit_end = 0;
  int64_t begin = 0, end = 0;  ///< on the device; 0 where the driver could not tell

  /// What it is, for a sentence.
  std::string description() const;
};

/// Work that is being traced or watched: made when it is submitted, timed by who hands it to the driver.
class Traced {
 public:
  enum class Progress { kWaiting, kRunning, kFinished };

  Traced(Stream& stream, TracedWork work);
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;
  ~Traced();

  /// Tells that the call that submitted it returns now.
  void submitted();

  const Stream& stream() const { return stream_; }
  std::string description() const { return work_.description(); }
  /// Whether the driver has not returned from the call that hands it over, which has begun.
  bool in_call() const { return in_call_.load(std::memory_order_acquire); }
  /// How far the device is with it, once it is handed over. Asks the driver.
  Progress progress() const;

 private:
  friend class TimedOnDevice;
  friend std::vector<TracedWork> stop_tracing();

  void read_times(const DeviceDriver& driver, const EventHandle& reference, int64_t reference_time);

  Stream& stream_;
  TracedWork work_;
  std::unique_ptr<EventHandle> begin_, end_;
  std::atomic<bool> in_call_{false}, timed_{false};
};

/// While it lives, the calling thread hands traced work to the driver, on the driver's stream. Nothing for nullptr.
/// What the driver refuses here costs the time, never the work.
class TimedOnDevice {
 public:
  TimedOnDevice(const std::shared_ptr<Traced>& traced, const DeviceDriver& driver, ob_stream stream);
  ~TimedOnDevice();
  TimedOnDevice(const TimedOnDevice&) = delete;
  TimedOnDevice& operator=(const TimedOnDevice&) = delete;

 private:
  void hand_over_end();

  Traced* const traced_;
  const DeviceDriver& driver_;
  const ob_stream stream_;
  bool begun_ = false;
};

/// Those that are told of each piece of work.
enum Observer : unsigned { kTraced = 1, kWatched = 2 };
extern std::atomic<unsigned> observers;

/// Whether one of these does. Costs a load.
inline bool is_observed(unsigned by = kTraced | kWatched) {
  return (observers.load(std::memory_order_relaxed) & by) != 0;
}
inline bool is_tracing() { return is_observed(kTraced); }
void observe(Observer observer, bool on);

/// Traces what all streams are given from now on. Traced kernels run one after the other, also those of a batch.
void start_tracing();
/// Waits for the work that was traced, leaves failures to who submits or waits next, and returns it in the order of
/// its submission.
std::vector<TracedWork> stop_tracing();
/// Keeps work to be traced if anything is. nullptr if nobody wants to know.
std::shared_ptr<Traced> trace(Stream& stream, TracedWork work);
/// Keeps what the host did for a device, with the times that it has, if anything is traced.
void trace_ended(TracedWork work);

/// The host's clock, as times of traced work have it.
int64_t traced_clock();
/// The innermost operator that the calling thread is in, or 0.
uint64_t traced_operation();
/// The system's number of the calling thread.
int64_t traced_thread();

/// The calling thread is in an operator, or in a range, of that number until it says otherwise. They nest.
void push_traced_operation(uint64_t number);
void pop_traced_operation();
void push_traced_range(uint64_t number);
void pop_traced_range();

}  // namespace outboard
