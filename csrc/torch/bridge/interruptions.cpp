// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/interruptions.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <signal.h>
#include <torch/csrc/Exceptions.h>

#include <atomic>

#include "runtime/base/interruption.h"

namespace outboard::aten {
namespace {

namespace py = pybind11;

/// Python runs the handlers of signals on this thread only.
unsigned long main_thread = 0;
/// Whether that thread waits for a backward pass, whether the user has pressed Ctrl-C since, and whether that has ended
/// the pass.
std::atomic<bool> in_backward{false}, signalled{false}, ended{false};
/// What Python has installed. It remembers the signal until the main thread runs Python code.
struct sigaction pythons;

bool is_main_thread() { return PyThread_get_thread_ident() == main_thread && Py_IsInitialized() != 0; }

bool works_for_main_thread() {
  return in_backward.load(std::memory_order_relaxed) && at::impl::ThreadLocalPythonObjects::contains(kBackward);
}

bool concerns_this_thread() { return is_main_thread() || works_for_main_thread(); }

bool is_certain() { return signalled.load(std::memory_order_relaxed) && !is_main_thread() && works_for_main_thread(); }

/// What was raised may soon be printed: the line that shows how far compilations are ends before it.
void end_progress_line() {
  const py::error_scope raised;
  const py::str name("outboard.compiler.progress");
  const auto progress = py::reinterpret_steal<py::object>(PyImport_GetModule(name.ptr()));
  if (progress) progress.attr("give_way")();
}

[[noreturn]] void throw_raised() {
  end_progress_line();
  python_error raised;
  raised.persist();
  throw raised;
}

void check_signals() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw_raised();
}

void check() {
  if (is_main_thread()) return check_signals();
  if (!signalled.load(std::memory_order_relaxed)) return;
  ended.store(true);
  TORCH_CHECK(false, "the backward pass was interrupted");
}

void on_signal(int number) {
  pythons.sa_handler(number);
  signalled.store(true);  // last: a thread that sees it may have the main thread look for what Python has noted
}

void begin_backward() {
  sigaction(SIGINT, nullptr, &pythons);
  const bool takes_number = (pythons.sa_flags & SA_SIGINFO) == 0;
  if (!takes_number || pythons.sa_handler == SIG_DFL || pythons.sa_handler == SIG_IGN) return;  // not Python's
  struct sigaction ours = pythons;
  ours.sa_handler = on_signal;
  signalled.store(false);
  ended.store(false);
  in_backward.store(true);
  sigaction(SIGINT, &ours, nullptr);
}

void end_backward() {
  struct sigaction now;
  sigaction(SIGINT, nullptr, &now);
  if (now.sa_handler == on_signal) sigaction(SIGINT, &pythons, nullptr);  // a hook may have installed another
  in_backward.store(false);
  if (!signalled.exchange(false)) return;
  check_signals();
  if (!ended.exchange(false)) return;
  // The handler has run, and what it raised was lost: PyTorch calls Python on the way back, to give out warnings.
  PyErr_SetNone(PyExc_KeyboardInterrupt);
  throw_raised();
}

}  // namespace

void install_interruptions() {
  static constexpr Interruptions kSignals{concerns_this_thread, check, is_certain};
  main_thread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  set_interruptions(&kSignals);
}

bool may_be_interrupted() {
  if (!is_main_thread() || at::impl::ThreadLocalPythonObjects::contains(kBackward)) return false;
  const py::str name("_signal");  // `signal` is Python, which Dynamo would compile within a compiled function
  const auto signals = py::reinterpret_steal<py::object>(PyImport_GetModule(name.ptr()));
  return signals && signals.attr("getsignal")(SIGINT).is(signals.attr("default_int_handler"));
}

py::object run_interruptibly(const py::object& run, const py::tuple& args, const py::dict& kwargs) {
  begin_backward();
  PyObject* const result = PyObject_Call(run.ptr(), args.ptr(), kwargs.ptr());
  python_error raised;
  if (result == nullptr) raised.persist();
  const py::object made = py::reinterpret_steal<py::object>(result);
  end_backward();
  if (result == nullptr) throw raised;
  return made;
}

}  // namespace outboard::aten
