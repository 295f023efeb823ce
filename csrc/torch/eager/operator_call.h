// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "runtime/plans/host_functions.h"

namespace outboard::aten {

/// Turns a step that the host carries out into a call of the ATen operator of its name, on tensors that who derives
/// from this makes of the step's views.
class OperatorCall {
 public:
  explicit OperatorCall(HostCall& call) : call_(call) {}
  virtual ~OperatorCall() = default;
  OperatorCall(const OperatorCall&) = delete;
  OperatorCall& operator=(const OperatorCall&) = delete;

 protected:
  /// Replaces the arguments on the stack by the results.
  virtual void carry_out(const c10::OperatorHandle& op, torch::jit::Stack& stack) = 0;
  /// A tensor with what an argument views. `written`: the operator writes to it.
  virtual at::Tensor tensor(const TensorView& view, bool written) = 0;
  /// Gives a result's elements to its view.
  virtual void store(const TensorView& view, const at::Tensor& made) = 0;
  /// Where new tensors are that an argument asks for.
  virtual c10::Device device() const = 0;

  void run();
  /// Elements of a result to a tensor of its sizes, which may have been expanded.
  static void copy(const at::Tensor& made, const at::Tensor& target);
  HostCall& call() const { return call_; }

 private:
  c10::OperatorHandle find() const;
  size_t position_of(const c10::FunctionSchema& schema, size_t i) const;
  /// An argument as the schema declares it; a number that is given for a tensor as PyTorch makes a tensor of one.
  c10::IValue value(const HostArgument& argument, const c10::TypePtr& declared, bool written);
  c10::IValue value_of_kind(const HostArgument& argument, const c10::TypePtr& declared, bool written);
  c10::IValue list(const HostArgument& argument, const c10::TypePtr& type, bool written);
  void store_results(const torch::jit::Stack& stack);

  HostCall& call_;
};

}  // namespace outboard::aten
