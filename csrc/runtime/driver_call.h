// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "runtime/error.h"

namespace outboard {

/// Throws what a driver call reported: OutOfMemoryError or Error, with the driver's own text.
inline void check(const ob_driver& driver, ob_status status, const char* what) {
  if (status == OB_OK) return;
  const char* text = driver.last_error();
  const std::string message = std::string(what) + " failed: " + (text != nullptr ? text : "no details");
  if (status == OB_OUT_OF_MEMORY) throw OutOfMemoryError(message);
  throw Error(status, message);
}

}  // namespace outboard
