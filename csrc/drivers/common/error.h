// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "outboard/driver.h"

namespace outboard::common {

inline thread_local std::string error_text;  // of this library: symbols are hidden

/// The text of the calling thread's last failure, for the table.
inline const char* last_error() { return error_text.c_str(); }

/// Keeps the text for `last_error`; returns the status.
inline ob_status fail(ob_status status, const std::string& text) {
  error_text = text;
  return status;
}

}  // namespace outboard::common
