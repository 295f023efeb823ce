// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "outboard/driver.h"

namespace outboard {

class Device;

/// Whether the device's driver has collectives between processes at all.
bool has_collectives(const Device& device);

/// A device's membership in a group of devices of several processes, by the driver's collectives.
class Communicator {
 public:
  /// Bytes by which other members find a new one of rank 0. Throws Error for what the driver reports.
  static std::string make_id(Device& device);

  /// Waits for the other members. Throws Error, OB_NOT_READY if not all came in time.
  Communicator(Device& device, const std::string& id, int rank, int size, std::chrono::milliseconds timeout);
  /// After a wait for its collectives succeeded, or after `abort`.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Device& device() const { return device_; }
  ob_communicator handle() const { return handle_; }
  /// Fails what is queued and what comes. From any thread. Throws Error for what the driver reports.
  void abort();

 private:
  Device& device_;
  ob_communicator handle_ = nullptr;
};

/// Whether communicators of the device do this. Throws Error for what the driver reports.
bool is_supported(const Device& device, uint32_t kind, uint32_t dtype, uint32_t reduction);

/// A collective as streams keep it until the driver has it.
class DriverCollective {
 public:
  /// `sent` and `received`: of OB_ALL_TO_ALL.
  DriverCollective(std::shared_ptr<Communicator> communicator, const ob_collective& what,
                   std::vector<uint64_t> sent = {}, std::vector<uint64_t> received = {})
      : communicator_(std::move(communicator)), what_(what), sent_(std::move(sent)), received_(std::move(received)) {
    what_.struct_size = sizeof(what_);
    what_.sent = sent_.data();
    what_.received = received_.data();
  }
  DriverCollective(const DriverCollective&) = delete;
  DriverCollective& operator=(const DriverCollective&) = delete;

  const Communicator& communicator() const { return *communicator_; }
  const ob_collective& what() const { return what_; }

 private:
  const std::shared_ptr<Communicator> communicator_;
  ob_collective what_;
  const std::vector<uint64_t> sent_, received_;
};

}  // namespace outboard
