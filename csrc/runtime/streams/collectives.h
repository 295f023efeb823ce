// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "outboard/driver.h"

namespace outboard {

class Device;
struct DeviceDriver;

/// Whether the device's driver has collectives between processes at all.
bool has_collectives(const Device& device);

/// A device's membership in a group of devices of several processes, by the driver's collectives.
class Communicator {
 public:
  /// Bytes by which other members find a new one of rank 0. Throws Error for what the driver reports.
  static std::string make_id(Device& device);

  /// Begins to join. Only a driver without `communicator_joined` waits for the other members, so long at most. Throws
  /// Error for what the driver reports, OB_NOT_READY if it waited in vain.
  Communicator(Device& device, const std::string& id, int rank, int size, std::chrono::milliseconds timeout);
  /// After a wait for its collectives succeeded, or after `abort`, or before all members are there.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Device& device() const { return device_; }
  ob_communicator handle() const { return handle_; }
  /// Whether all members are there, from when on collectives may be submitted. For one thread. Throws Error if they
  /// will not be.
  bool is_joined();
  /// Fails what is queued and what comes, or gives up joining. From any thread. Throws Error for what the driver
  /// reports, the first time.
  void abort();

 private:
  Device& device_;
  ob_communicator handle_ = nullptr;
  bool joined_;
  std::atomic<bool> aborted_{false};
};

/// A communicator whose members may still be missing, or the exception that there is instead.
using ComingCommunicator = std::shared_future<std::shared_ptr<Communicator>>;

/// Whether communicators of the device do this. Throws Error for what the driver reports.
bool is_supported(const Device& device, uint32_t kind, uint32_t dtype, uint32_t reduction);

/// A collective as streams keep it until the driver has it.
class DriverCollective {
 public:
  /// `sent` and `received`: of OB_ALL_TO_ALL.
  DriverCollective(ComingCommunicator communicator, const ob_collective& what, std::vector<uint64_t> sent = {},
                   std::vector<uint64_t> received = {})
      : communicator_(std::move(communicator)), what_(what), sent_(std::move(sent)), received_(std::move(received)) {
    what_.struct_size = sizeof(what_);
    what_.sent = sent_.data();
    what_.received = received_.data();
  }
  DriverCollective(const DriverCollective&) = delete;
  DriverCollective& operator=(const DriverCollective&) = delete;

  /// Whether `submit` would not wait.
  bool is_ready() const;
  /// Waits until the communicator is there, and submits. Throws what it is instead, or Error.
  void submit(const DeviceDriver& driver, ob_stream stream);
  /// What `submit` threw, or nullptr. Once the stream has handed over what came behind it.
  const std::exception_ptr& failure() const { return failure_; }

 private:
  const ComingCommunicator communicator_;
  ob_collective what_;
  const std::vector<uint64_t> sent_, received_;
  std::exception_ptr failure_;
};

}  // namespace outboard
