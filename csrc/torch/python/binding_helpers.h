// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <stdexcept>

#include "torch/bridge/devices.h"

/// What the files of bindings share.
namespace outboard::aten::bindings {

/// A Python integer as a DeviceIndex, which is too narrow for some of them. Throws c10::Error.
inline c10::DeviceIndex checked(int64_t index) {
  TORCH_CHECK(index >= -1 && index < device_count(), "Invalid device index ", index, ": there are ",
              static_cast<int>(device_count()), " devices");
  return static_cast<c10::DeviceIndex>(index);
}

/// Refuses calls in a forked child (`require_parent_process`).
struct InParentProcess {
  InParentProcess() {
    try {
      require_parent_process();
    } catch (const c10::Error& error) {
      throw std::runtime_error(error.what_without_backtrace());
    }
  }
};

/// Defines a function whose C++ exceptions become PyTorch's Python exceptions, and which a forked child may not call.
template <typename Function>
void define(pybind11::module_& m, const char* name, const char* text, Function function) {
  m.def(name, torch::wrap_pybind_function(function), text, pybind11::call_guard<InParentProcess>());
}
/// The same for a function that may wait: other Python threads run meanwhile.
template <typename Function>
void define_blocking(pybind11::module_& m, const char* name, const char* text, Function function) {
  m.def(name, torch::wrap_pybind_function_no_gil(function), text, pybind11::call_guard<InParentProcess>());
}
/// The same for a function that a forked child may call, too.
template <typename Function>
void define_for_all(pybind11::module_& m, const char* name, const char* text, Function function) {
  m.def(name, torch::wrap_pybind_function_no_gil(function), text);
}

}  // namespace outboard::aten::bindings
