// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include "outboard/driver.h"

namespace outboard {

/// A failure of the runtime or of a driver call. `status()` tells the kind; `what()` is the user's text.
class Error : public std::runtime_error {
 public:
  Error(ob_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  ob_status status() const { return status_; }

 private:
  ob_status status_;
};

/// Says where an error of the device's work comes from, behind its text.
inline constexpr const char* kFoundLate =
    " (found when the device was waited for; with OUTBOARD_LAUNCH_BLOCKING=1 the call that failed raises this)";

/// A kernel or executable met an index that is not inside the size of the dimension it selects from.
class IndexError : public Error {
 public:
  explicit IndexError(const std::string& message) : Error(OB_INVALID_ARGUMENT, message) {}
};

/// A device was used in a process that was forked after the device was opened.
class ForkError : public Error {
 public:
  explicit ForkError(const std::string& message) : Error(OB_INVALID_ARGUMENT, message) {}
};

/// Device memory is exhausted even after every cached block was given back.
class OutOfMemoryError : public Error {
 public:
  explicit OutOfMemoryError(const std::string& message) : Error(OB_OUT_OF_MEMORY, message) {}
};

}  // namespace outboard
