// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <Python.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "torch/eager/eager_operator.h"

namespace outboard::aten {

/// What the plans of a call are kept under.
struct PlanKey {
  const Operator& op;
  c10::DeviceIndex device;
  std::string_view signature;
  bool bake;  ///< whether scalar values are part of the signature
};

/// Where a plan may come from.
struct PlanSources {
  bool cache;     ///< the disk cache
  bool compiler;  ///< where the cache has nothing
  bool library;   ///< whether the compiler may use the driver's library
};

/// What answers a call.
struct PlanAnswer {
  enum Verdict {
    kPlan,     ///< plans; which of them accepts the call their guards say
    kBake,     ///< scalar values must be part of the signature
    kCpu,      ///< the device has no such operator
    kRefused,  ///< it has, but the compiler failed on it
    kNothing   ///< these sources have no answer
  };
  Verdict verdict = kNothing;
  std::vector<std::string> plans{};  ///< serialised
  bool kept = false;                 ///< the answer is from the disk cache
};

/// The compiler, asked when C++ has no plan. Implemented over Python in bindings_eager.cpp.
class Compiler {
 public:
  virtual ~Compiler() = default;
  /// Whether nothing can be compiled any more, because Python takes its modules down. Calls without a plan then run on
  /// the CPU.
  virtual bool has_ended() const = 0;
  /// A plan for a call with these arguments, as they are signed. Throws what the operator raises for wrong ones.
  virtual PlanAnswer plan_for(const PlanKey& key, c10::ArrayRef<c10::IValue> arguments, const PlanSources& sources) = 0;
  /// Puts a plan that was adopted into the disk cache.
  virtual void keep_plan(const PlanKey& key, const std::string& plan) = 0;
  /// Puts into the disk cache that scalar values must be part of the signature.
  virtual void keep_bake(const PlanKey& key) = 0;
  /// Whether somebody writes programs in this dialect.
  virtual bool writes(const std::string& dialect) = 0;
  /// What `library_attends` returns. Tensors may be fake.
  virtual std::optional<bool> attends_by_library(const at::Tensor& query, const at::Tensor& key,
                                                 const at::Tensor& value, bool causal, std::optional<double> scale,
                                                 bool plain) = 0;
};

/// Takes over the compiler of the process; leaked at exit, since operators may still run then.
void set_compiler(std::unique_ptr<Compiler> compiler);

/// The compiler of the process. Throws c10::Error if there is none yet.
Compiler& the_compiler();

/// Whether programs can be made for the device: it has a dialect, and the compiler writes it.
bool runs_programs(c10::DeviceIndex index);

/// Whether executables of the device's graph compiler are made for one set of sizes and strides.
bool has_static_sizes(c10::DeviceIndex index);

/// Whether the driver's library computes this attention, as one operator, and is to be taken; never unless it is
/// `plain`, without mask and gradient. Nothing if the library has no attention.
std::optional<bool> library_attends(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                    bool causal, std::optional<double> scale, bool plain);

/// Whether the CPU's kernel has the last word on a call that tracing refuses with a type of error: one that PyTorch
/// raises for wrong arguments, and not what the compiler says of a fault of its own, where the kernel accepts a
/// rehearsal or judges values, which only the call itself has. Raises what it says of the rehearsal.
bool is_left_to_cpu(const Operator& op, c10::ArrayRef<c10::IValue> arguments, PyObject* type);

}  // namespace outboard::aten
