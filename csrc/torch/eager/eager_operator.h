// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>
#include <vector>

namespace outboard::aten {

/// How eager dispatch treats one argument of a schema.
enum class ArgumentRole : uint8_t {
  kTensor,      ///< Tensor or Tensor?
  kTensorList,  ///< Tensor[] or Tensor?[]
  kScalar,      ///< Scalar or Scalar?: a run-time value of a plan
  kScalarList,  ///< Scalar[]
  kNumber,      ///< int, SymInt or float that is a run-time value of a plan, too (see `run_time_numbers`)
  kNumberList,  ///< a list of such
  kGenerator,   ///< Generator?: where seeds come from; no part of the plan
  kBaked        ///< everything else: its value is part of the signature
};

/// What eager dispatch needs to know about an operator, worked out once from its schema.
struct Operator {
  c10::OperatorHandle handle;
  std::string name;  ///< "aten::add.Tensor"
  std::vector<ArgumentRole> roles;
  std::vector<bool> written;          ///< per argument: the operator writes to it
  std::vector<int> aliased_argument;  ///< per return: the argument it is, or -1 for a new tensor
  bool writes = false;
  bool out_variant = false;  ///< results go to keyword arguments (`out=`)
  bool pointwise = false;
  bool coalesces = false;            ///< on tensors that all lie alike it is the same operator on one dimension
  bool contiguous = false;           ///< results are contiguous, however the arguments lie
  bool idempotent = false;           ///< may be written to elements that share memory: each gets the same value
  bool random = false;               ///< draws from a generator
  bool accepts_cpu_indices = false;  ///< index tensors may live on the CPU, as on CUDA
  bool wide_statistics = false;      ///< takes statistics that are saved in float32, where the CPU has halves
  bool accepts_cpu_tensors = false;  ///< some tensor argument is defined to be on the CPU (lengths, for instance)
};

/// The record of an operator; stable for the life of the process.
const Operator& operator_of(const c10::OperatorHandle& handle);

/// Arguments of an operator whose type is an integer's, on whose values no code depends: sizes, places and bounds. A
/// plan holds for any value of theirs, as for any size of a tensor. Empty for most operators.
const std::vector<std::string>& run_time_numbers(const std::string& op);

/// The operator with this name and overload ("aten::copy_", ""). Throws c10::Error if there is none.
const Operator& find_operator(const char* name, const char* overload);

}  // namespace outboard::aten
