// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/backward_pass.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/SafePyObject.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/PyInterpreter.h>

#include <list>
#include <memory>
#include <utility>

#include "torch/bridge/interruptions.h"

namespace outboard::aten {
namespace {

namespace py = pybind11;
using Locals = at::impl::ThreadLocalPythonObjects;

/// Marks the state of a pass that may not be interrupted, as `kBackward` does that of one that may be.
constexpr const char* kPass = "outboard.pass";

/// The calling thread's state as a pass gets it.
struct PassState {
  std::shared_ptr<c10::SafePyObject> mark;
  at::ThreadLocalState state;

  /// Whether nobody else has the mark, which `state` has, too.
  bool is_let_go() const { return mark.use_count() == 2; }
};

/// States that threads still held when their passes had returned. Never freed; guarded by the GIL.
std::list<PassState>& held_states() {
  static auto* const held = new std::list<PassState>();
  return *held;
}

/// Marks the calling thread's state, for the length of a pass.
class MarkedState {
 public:
  explicit MarkedState(bool interruptible) : before_(Locals::get_state()) {
    auto mark = std::make_shared<c10::SafePyObject>(py::bool_(true).release().ptr(), getPyInterpreter());
    Locals::set(interruptible ? kBackward : kPass, mark);
    pass_.push_back({std::move(mark), at::ThreadLocalState()});
  }
  MarkedState(const MarkedState&) = delete;
  MarkedState& operator=(const MarkedState&) = delete;
  ~MarkedState() {
    Locals::set_state(before_);
    auto& held = held_states();
    held.splice(held.end(), pass_);
    held.remove_if([](const PassState& state) { return state.is_let_go(); });
  }

 private:
  const Locals before_;
  std::list<PassState> pass_;
};

}  // namespace

py::object run_backward(const py::object& run, const py::args& args, const py::kwargs& kwargs) {
  const bool interruptible = may_be_interrupted();
  const MarkedState marked(interruptible);
  if (interruptible) return run_interruptibly(run, args, kwargs);
  return run(*args, **kwargs);
}

}  // namespace outboard::aten
