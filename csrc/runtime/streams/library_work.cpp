// SPDX-License-Identifier: Apache-2.0
#include "runtime/streams/library_work.h"

#include "runtime/base/driver_call.h"

namespace outboard {

bool LibraryWork::find(const ob_driver& driver, ob_device device) {
  if (driver.library_find == nullptr || driver.library_call == nullptr) return false;
  std::vector<ob_operand> described = operands_;
  for (ob_operand& operand : described) operand.data = 0;  // nobody is to look there yet
  const ob_status status =
      driver.library_find(device, name_.c_str(), described.data(), static_cast<uint32_t>(described.size()), &function_);
  if (status != OB_UNSUPPORTED) check(driver, status, "looking for a library function");
  return status == OB_OK;
}

}  // namespace outboard
