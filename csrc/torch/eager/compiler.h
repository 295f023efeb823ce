// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <Python.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch/eager/eager_operator.h"

namespace outboard::aten {

/// What the compiler made of one call.
struct Compiled {
  enum Verdict {
    kPlan,
    kBake,
    kHost,    ///< the device has no such operator
    kRefused  ///< it has, but the compiler failed on it
  };
  Verdict verdict;
  std::string plan;  ///< serialised, for kPlan
};

/// The compiler, asked when C++ has no plan. Implemented over Python in bindings_eager.cpp.
class Compiler {
 public:
  virtual ~Compiler() = default;
  /// Whether nothing can be compiled any more, because Python takes its modules down. Calls without a plan then run on
  /// the CPU.
  virtual bool has_ended() const = 0;
  /// Plans that the disk cache holds for a signature, and whether scalar values belong to it.
  virtual std::pair<bool, std::vector<std::string>> load(const std::string& signature) = 0;
  /// `library`: whether the plan may call the driver's.
  virtual Compiled compile(const Operator& op, c10::ArrayRef<c10::IValue> arguments, bool bake, bool library) = 0;
  /// Puts a plan into the disk cache, or, with an empty one, the word that scalar values belong to the signature (then
  /// `bake` is true). For a plan `bake` is as it was given to `compile`.
  virtual void keep(const std::string& signature, bool bake, const std::string& plan) = 0;
  /// Whether somebody writes programs in this dialect.
  virtual bool writes(const std::string& dialect) = 0;
  /// Whether attention without mask and gradient goes to the driver's library, as one operator. Tensors may be fake.
  virtual bool attends_by_library(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool causal,
                                  std::optional<double> scale) = 0;
};

/// Takes over the compiler of the process; leaked at exit, since operators may still run then.
void set_compiler(std::unique_ptr<Compiler> compiler);

/// The compiler of the process. Throws c10::Error if there is none yet.
Compiler& the_compiler();

/// Whether programs can be made for the device: it has a dialect, and the compiler writes it.
bool runs_programs(c10::DeviceIndex index);

/// Whether the driver's library computes this attention, without mask and gradient, and is to be taken.
bool library_attends(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool causal,
                     std::optional<double> scale);

/// Whether an error of Python's is of a type that PyTorch raises for wrong arguments, and not what the compiler says of
/// a fault of its own.
bool is_complaint(PyObject* type);

}  // namespace outboard::aten
