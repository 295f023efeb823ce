// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/compiler.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <limits>

#include "runtime/device.h"
#include "torch/bridge/devices.h"
#include "torch/eager/fallback.h"

namespace outboard::aten {
namespace {

std::unique_ptr<Compiler>& known_compiler() {
  static auto* const instance = new std::unique_ptr<Compiler>;  // leaked: see set_compiler
  return *instance;
}

/// What is known of each device: 1, -1, 0 not known.
using Answers = std::array<std::atomic<int8_t>, size_t{std::numeric_limits<c10::DeviceIndex>::max()} + 1>;

/// The compiler while there is one.
Compiler* present_compiler() {
  Compiler* const compiler = known_compiler().get();
  return compiler == nullptr || compiler->has_ended() ? nullptr : compiler;
}

/// Whether an error of Python's is of a type that PyTorch raises for wrong arguments, and not what the compiler says of
/// a fault of its own.
bool is_complaint(PyObject* type) {
  const pybind11::gil_scoped_acquire gil;
  if (PyObject_HasAttrString(type, "is_fault_of_compiler") != 0) return false;
  PyObject* const types[] = {PyExc_RuntimeError, PyExc_IndexError, PyExc_ValueError, PyExc_TypeError};
  return std::any_of(std::begin(types), std::end(types),
                     [&](PyObject* one) { return PyErr_GivenExceptionMatches(type, one) != 0; });
}

}  // namespace

void set_compiler(std::unique_ptr<Compiler> compiler) { known_compiler() = std::move(compiler); }

Compiler& the_compiler() {
  TORCH_CHECK(known_compiler() != nullptr, "Outboard's compiler is not installed: import outboard first");
  return *known_compiler();
}

bool runs_programs(c10::DeviceIndex index) {
  static Answers answers{};
  std::atomic<int8_t>& known = answers.at(static_cast<size_t>(index));
  if (known == 0) {
    const char* dialect = device(index).properties().dialect;
    Compiler* const compiler = present_compiler();
    if (compiler == nullptr) return false;
    known = *dialect != '\0' && compiler->writes(dialect) ? 1 : -1;
  }
  return known > 0;
}

bool has_static_sizes(c10::DeviceIndex index) {
  static Answers answers{};
  std::atomic<int8_t>& known = answers.at(static_cast<size_t>(index));
  if (known == 0) known = device(index).properties().static_sizes != 0 ? 1 : -1;
  return known > 0;
}

std::optional<bool> library_attends(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                    bool causal, std::optional<double> scale, bool plain) {
  Compiler* const compiler = present_compiler();
  if (*device(query.device().index()).properties().library == '\0' || compiler == nullptr) return std::nullopt;
  return compiler->attends_by_library(query, key, value, causal, scale, plain);
}

bool is_left_to_cpu(const Operator& op, c10::ArrayRef<c10::IValue> arguments, PyObject* type) {
  return (op.facts.judges_values || rehearse_on_cpu(op, arguments)) && is_complaint(type);
}

}  // namespace outboard::aten
