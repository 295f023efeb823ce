// SPDX-License-Identifier: Apache-2.0
#include "torch/interruptions.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include "runtime/interruption.h"

namespace outboard::aten {
namespace {

namespace py = pybind11;

/// Python runs the handlers of signals on this thread only.
unsigned long main_thread = 0;

bool is_main_thread() { return PyThread_get_thread_ident() == main_thread && Py_IsInitialized() != 0; }

void check_signals() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  python_error raised;
  raised.persist();
  throw raised;
}

}  // namespace

void install_interruptions() {
  static constexpr Interruptions kSignals{is_main_thread, check_signals};
  main_thread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  set_interruptions(&kSignals);
}

}  // namespace outboard::aten
