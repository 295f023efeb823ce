// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "outboard/driver.h"
#include "runtime/base/driver_call.h"
#include "runtime/memory/caching_allocator.h"
#include "runtime/memory/residency.h"
#include "runtime/memory/work_order.h"
#include "runtime/programs/loaded_functions.h"
#include "runtime/programs/program_cache.h"
#include "runtime/streams/assertions.h"
#include "runtime/streams/stream.h"

namespace outboard {

/// One device of a driver: its properties, streams, memory and programs. Lives until process exit.
class Device {
 public:
  /// Where another process finds the device: the driver's library, and the device's place among those it opens from it.
  struct Origin {
    std::string library;
    int place;
  };

  Device(const ob_driver* driver, ob_device handle, int index, Origin origin = {});

  int index() const { return index_; }
  const Origin& origin() const;
  /// Whether the other's driver is this one's, which then knows its streams and events.
  bool shares_driver_with(const Device& other) const { return origin().library == other.origin().library; }
  const DeviceDriver& driver() const;
  ob_device handle() const;
  const ob_device_properties& properties() const;
  bool host_accessible() const { return properties().host_accessible != 0; }
  bool takes_host_memory() const { return host_accessible() && properties().takes_host_memory != 0; }

  WorkOrder& order() { return *order_; }
  CachingAllocator& allocator() { return *allocator_; }
  Residency& residency() { return *residency_; }
  ProgramCache& programs();
  LoadedFunctions& functions();
  Assertions& assertions();

  /// Stream 0, the one used unless the caller selects another.
  Stream& default_stream() { return *default_stream_; }
  /// The stream of this number that stands for one of a device that was reset, whose place this one took: the other
  /// one itself if it captures a graph, which is lost.
  Stream& successor_of(Stream& earlier);
  /// A stream of the pool (created on first use; round robin over 32). Ids count from 1.
  Stream& pool_stream();
  /// The stream with this id. Throws Error(OB_INVALID_ARGUMENT) if there is none.
  Stream& stream(int64_t id);

  /// The streams that there are with a queue of their own: all but those that capture graphs.
  std::vector<Stream*> queues();

  /// A stream for capturing a graph, for as long as the pointer lives: the one with this id, or for 0 one that no graph
  /// uses. Throws Error(OB_INVALID_ARGUMENT) if no graph uses a stream of this id.
  std::shared_ptr<Stream> graph_stream(int64_t id);

  /// The stream for moving memory out beside the streams that compute, or nullptr where that gains nothing because the
  /// host addresses the device's memory. Has no id that `stream` knows. Its driver stream is made on first use.
  Stream* transfer_stream();

  /// Waits for all streams of the device.
  void synchronize();
  /// True once a call on the device said so: whatever uses it throws Error(OB_DEVICE_LOST) from then on.
  bool lost() const;
  /// True if that is because it was reset: another object stands for the device now.
  bool was_reset() const;
  /// Gives the device up for a new one, which this returns: all that was on it is lost. Throws
  /// Error(OB_UNSUPPORTED) of a driver that cannot.
  std::unique_ptr<Device> reset();
  /// Ends the threads of the streams; at the end of the process.
  void stop() noexcept;
  /// The same, and leaves out what the driver does not have yet.
  void abandon() noexcept;
  /// Gives cached memory of the device, and host memory that stands in for it, back.
  void empty_cache();
  /// Totals and counts of allocator and residency become zero.
  void reset_accumulated_statistics();
  /// What the driver's sensors say; OB_NOT_KNOWN where it has none.
  ob_sensors sensors() const;
  /// Free and total bytes, from the driver where it can tell, else limit minus reserved.
  std::pair<uint64_t, uint64_t> memory_info();

 private:
  void give_up();
  void take_streams_of(Device& earlier);
  void abandon_streams() noexcept;

  struct Impl;
  const int index_;
  std::unique_ptr<WorkOrder> order_;  // streams use its lock
  std::unique_ptr<CachingAllocator> allocator_;
  std::unique_ptr<Residency> residency_;
  std::shared_ptr<Impl> impl_;
  Stream* default_stream_ = nullptr;
};

/// All devices of the process. Created by `Runtime::initialize`, never destroyed (static destructors
/// must not race with work still queued); `shutdown` drains queues at interpreter exit.
class Runtime {
 public:
  /// Which of so many devices to use, by number, in the order that they are to have; all if it is empty.
  using Choice = std::function<std::vector<int>(int count)>;

  /// Drivers that make a device of the processor itself. They are loaded where there is no device, or none but the
  /// processor as a device of the drivers `instead_of`, whose place they then take: two would share its cores. That
  /// there are none says that the user has named drivers: nothing is left aside then.
  struct Processor {
    std::vector<std::string> drivers, instead_of;
  };

  /// Loads driver libraries in order and opens their devices. A library that cannot be loaded adds a line to
  /// `problems()` and does not throw. Call once; later calls return the same object. What `choice` throws passes
  /// through, and there are no devices then.
  static Runtime& initialize(const std::vector<std::string>& driver_paths, const Choice& choice = {},
                             const Processor& processor = {});
  static Runtime& get();

  int device_count() const;
  /// Throws Error(OB_INVALID_ARGUMENT) for an index out of range, ForkError in a forked child.
  Device& device(int index);
  /// Makes a device as new, lost or not. The object that stood for it stays, as a lost device, for whoever has it.
  /// Throws Error(OB_UNSUPPORTED) if the driver cannot.
  Device& reset(int index);
  const std::vector<std::string>& problems() const;
  /// Drivers and devices that are not used, or have no hardware, since another has some, and why.
  const std::vector<std::string>& passed_over() const;

  /// The calling thread's current device (0 at first).
  int current_device() const;
  void set_current_device(int index);
  /// The same for an index that was current before: also in a forked child, where guards end as elsewhere.
  void restore_current_device(int index) noexcept;
  /// The calling thread's current stream on a device (its default stream at first).
  Stream& current_stream(int index);
  void set_current_stream(Stream& stream);

  /// True in a child process forked after `initialize` found devices. Set by a pthread_atfork handler.
  bool forked() const;
  /// Waits for queued work and ends the threads of the runtime. In a hurry, or once a user has interrupted a wait, what
  /// did not begin is left out.
  void shutdown(bool hurry = false) noexcept;
};

}  // namespace outboard
