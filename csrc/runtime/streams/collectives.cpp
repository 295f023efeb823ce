// SPDX-License-Identifier: Apache-2.0
#include "runtime/streams/collectives.h"

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
    : device_(device) {
  refuse_if_unusable(device.driver());
  check(device.driver(),
        device.driver().communicator_create(device.handle(), id.data(), static_cast<uint32_t>(rank),
                                            static_cast<uint32_t>(size), static_cast<uint64_t>(timeout.count()),
                                            &handle_),
        "joining the driver's communicator");
}

Communicator::~Communicator() {
  if (!in_forked_child) device_.driver().communicator_destroy(handle_);
}

void Communicator::abort() {
  check(device_.driver(), device_.driver().communicator_abort(handle_), "aborting a communicator");
}

}  // namespace outboard
