// SPDX-License-Identifier: Apache-2.0
#include "runtime/streams/collectives.h"

#include <algorithm>

#include "runtime/base/driver_call.h"
#include "runtime/device.h"

namespace outboard {

bool is_supported(const Device& device, uint32_t kind, uint32_t dtype, uint32_t reduction) {
  const DeviceDriver& driver = device.driver();
  if (driver.collective == nullptr) return false;
  refuse_if_unusable(driver);
  const ob_status status = driver.collective_supported(device.handle(), kind, dtype, reduction);
  if (status != OB_UNSUPPORTED) check(driver, status, "asking for a collective");
  return status == OB_OK;
}

bool has_collectives(const Device& device) { return is_supported(device, OB_BROADCAST, 0, OB_SUM); }

std::string Communicator::make_id(Device& device) {
  std::string id(OB_COMMUNICATOR_ID_BYTES, '\0');
  check(device.driver(), device.driver().communicator_id(device.handle(), id.data()), "making a communicator's id");
  return id;
}

Communicator::Communicator(Device& device, const std::string& id, int rank, int size, std::chrono::milliseconds timeout)
    : device_(device), joined_(device.driver().communicator_joined == nullptr) {
  refuse_if_unusable(device.driver());
  const auto patience = joined_ ? static_cast<uint64_t>(std::max<int64_t>(1, timeout.count())) : 0;
  check(device.driver(),
        device.driver().communicator_create(device.handle(), id.data(), static_cast<uint32_t>(rank),
                                            static_cast<uint32_t>(size), patience, &handle_),
        "joining the driver's communicator");
}

Communicator::~Communicator() {
  if (in_forked_child) return;
  // Its status tells nobody anything: what the members would have done together is over.
  if (!joined_ && !aborted_.exchange(true)) device_.driver().communicator_abort(handle_);
  device_.driver().communicator_destroy(handle_);
}

bool Communicator::is_joined() {
  if (joined_) return true;
  const ob_status status = device_.driver().communicator_joined(handle_);
  if (status == OB_NOT_READY) return false;
  check(device_.driver(), status, "joining the driver's communicator");
  return joined_ = true;
}

void Communicator::abort() {
  if (aborted_.exchange(true)) return;
  check(device_.driver(), device_.driver().communicator_abort(handle_), "aborting a communicator");
}

bool DriverCollective::is_ready() const {
  return communicator_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void DriverCollective::submit(const DeviceDriver& driver, ob_stream stream) {
  try {
    check(driver, driver.collective(stream, communicator_.get()->handle(), &what_), "submitting a collective");
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

}  // namespace outboard
