// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/plans/executor.h"
#include "torch/eager/eager_arguments.h"
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

/// Whether programs can be made for the device: it has a dialect, and the compiler writes it.
bool runs_programs(c10::DeviceIndex index);

/// Whether the driver's library computes this attention, without mask and gradient, and is to be taken.
bool library_attends(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool causal,
                     std::optional<double> scale);

struct EagerStatistics {
  int64_t hits = 0;    ///< calls that ran a plan found in C++
  int64_t misses = 0;  ///< calls that had to ask the compiler
  int64_t plans = 0;   ///< plans held in memory
};
EagerStatistics eager_statistics();
void reset_eager_statistics();

/// Nanoseconds of the parts of a call that finds its plan, each a median.
struct HitCosts {
  double device;     ///< which device the arguments are on
  double signature;  ///< the bytes that tell plans apart, and the bindings of tensors
  double lookup;     ///< from these bytes to the plans
  double symbols;    ///< sizes and scalars into symbols, guards
  double plan;       ///< outputs' records and memory, arguments, submission; and memory given back
  double kernel;     ///< the whole kernel, results as tensors included, which are deleted
  double call;       ///< the same through PyTorch's dispatcher, autograd's layer included
};

/// Measures an addition of two tensors of a device of ours on `bursts` series of calls, between which the device comes
/// to rest.
HitCosts hit_costs(const at::Tensor& left, const at::Tensor& right, int64_t bursts);

/// The boxed kernel of every operator on the device: signature -> plan -> results, with the CPU as last resort.
void eager_kernel(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// The same by kernels of our own, for who was refused by the driver's library.
void eager_without_library(const Operator& op, torch::jit::Stack* stack);

/// The same for typed kernels (typed_kernels.h), without a stack: the result of an operator that returns one new
/// tensor.
at::Tensor eager_tensor(const Operator& op, Arguments& arguments);

/// The same for an operator that only writes to its arguments. `batch`, if there is one: see ExecutionContext.
void eager_write(const Operator& op, Arguments& arguments, Batch* batch = nullptr);

struct PlanEntry;

/// The plans of one signature, for who calls an operator that only writes to its arguments many times with arguments
/// that the signature does not tell apart. Once plans were taken away, nothing is known any more.
class KnownPlans {
 public:
  KnownPlans(const Operator& op, Arguments& arguments);
  /// Makes a call with these inputs: those that a signature would have. False: nothing was done, because no plan is
  /// known that accepts them.
  bool run(const c10::SmallVectorImpl<Input>& inputs, Batch* batch) const;

 private:
  c10::DeviceIndex device_;
  const PlanEntry* entry_ = nullptr;
  uint64_t generation_ = 0;
};

/// Runs a plan's results into IValues: tensors over new allocations, inputs themselves, or integers.
/// `tensors[i]` is input number i or nullptr.
c10::IValue to_ivalue(const Result& result, c10::ArrayRef<const at::Tensor*> tensors);

/// Copies `src` to `dst` on one device: any strides, any dtype conversion, broadcast of `src`.
void compiled_copy(const at::Tensor& dst, const at::Tensor& src);

}  // namespace outboard::aten
