// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>
#include <vector>

#include "torch/eager/warnings.h"

namespace outboard::aten {

/// How eager dispatch treats one argument of a schema.
enum class ArgumentRole : uint8_t {
  kTensor,      ///< Tensor or Tensor?
  kTensorList,  ///< Tensor[] or Tensor?[]
  kScalar,      ///< Scalar or Scalar?: a run-time value of a plan
  kScalarList,  ///< Scalar[]
  kNumber,      ///< int, SymInt or float that is a run-time value of a plan, too (`OperatorFacts::run_time`)
  kNumberList,  ///< a list of such
  kGenerator,   ///< Generator?: where seeds come from; no part of the plan
  kBaked        ///< everything else: its value is part of the signature
};

/// What is special about an operator, all its overloads alike: the fields of its row in compiler/operators/facts.py.
struct OperatorFacts {
  std::vector<std::string> whole{};     ///< overloads ("" for the default one) that are one kernel, not PyTorch's many
  std::vector<std::string> run_time{};  ///< numbers on whose values no code depends
  std::vector<std::string> moves{};     ///< arguments whose elements it only moves, whatever they are
  std::vector<std::string> writes{};    ///< arguments that it writes although its schema does not say so
  bool cpu_indices = false;             ///< the tensors of its list, indices, may lie on the CPU, as on CUDA
  bool contiguous = false;              ///< results are contiguous, however the arguments lie
  bool idempotent = false;              ///< may write to elements that share memory: each gets the same value
  bool float_statistics = false;        ///< takes statistics that are saved in float32, where the CPU has halves
  bool judges_values = false;  ///< the CPU's kernel judges the values of tensors, of which a rehearsal has none
  bool sees_storage = false;   ///< sees all of a storage, of which a plan has only what its tensors see
  Warning warning = nullptr;   ///< of what the CPU's kernel warns
};

/// The facts of the operator of a schema.
const OperatorFacts& facts_of(const c10::FunctionSchema& schema);

/// What eager dispatch needs to know about an operator, worked out once from its schema and its facts.
struct Operator {
  c10::OperatorHandle handle;
  const OperatorFacts& facts;
  std::string name;  ///< "aten::add.Tensor"
  std::vector<ArgumentRole> roles;
  std::vector<bool> written;          ///< per argument: the operator writes to it
  std::vector<bool> is_out;           ///< per argument: written, and given by name (`out=`)
  std::vector<int> aliased_argument;  ///< per return: the argument it is, or -1 for a new tensor
  bool writes = false;
  bool out_variant = false;  ///< results go to keyword arguments (`out=`)
  bool pointwise = false;
  bool coalesces = false;  ///< on tensors that all lie alike it is the same operator on one dimension
  bool random = false;     ///< draws from a generator
};

/// The record of an operator; stable for the life of the process.
const Operator& operator_of(const c10::OperatorHandle& handle);

/// The operator with this name and overload ("aten::copy_", ""). Throws c10::Error if there is none.
const Operator& find_operator(const char* name, const char* overload);

}  // namespace outboard::aten
