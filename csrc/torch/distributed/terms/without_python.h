// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

namespace outboard::distributed {

/// Callbacks of futures need Python, so a thread that waits for threads that run them must not hold its lock.
class WithoutPython {
 public:
  WithoutPython() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

}  // namespace outboard::distributed
