// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plans/executor.h"
#include "torch/eager/eager_arguments.h"
#include "torch/eager/eager_operator.h"
#include "torch/eager/signature_bytes.h"

namespace outboard::aten {

/// One call, taken apart: the bytes that, with the operator, select a plan, and the plan's inputs in schema order
/// (tensors, then what the roles make of scalars). Tensors are borrowed from the arguments.
///
/// A pointwise call on tensors that all lie alike, without gaps, is signed as one on vectors: then all shapes and ranks
/// have one plan. Its results lie as `pattern` does.
struct CallSignature {
  SignatureBytes bytes;
  c10::SmallVector<Input, 8> inputs;
  c10::SmallVector<const at::Tensor*, 8> tensors;  ///< per input: the tensor, or nullptr for a scalar
  std::optional<at::Generator> generator;
  const at::Tensor* pattern = nullptr;  ///< of a call signed as one on vectors: one of its tensors
  int64_t count = 0;                    ///< of such a call: elements per tensor
  bool overflows = false;               ///< some number does not fit the element type of a tensor

  void clear();
};

/// One input of the plan of a call, as the signature has it: what else a plan for it may depend on is no part of its
/// key.
struct SignedLeaf {
  enum Kind { kTensor, kInt, kFloat };

  std::string argument;  ///< name in the schema
  int64_t item = -1;     ///< number in the argument's list; -1 if the argument is no list
  Kind kind = kTensor;
  /// Of a tensor, per dimension: a size that code may take for granted, 0 or 1, or nothing.
  std::vector<std::optional<int64_t>> sizes{};
  /// The same of strides, of a tensor that is not dense.
  std::vector<std::optional<int64_t>> strides{};
  /// Of a dense tensor: dimensions from the outermost to the innermost in memory.
  std::vector<uint8_t> order{};
};

/// The inputs of a call's plan, in their order, of arguments as they are signed (`signed_arguments`) that have a
/// signature.
std::vector<SignedLeaf> signed_leaves(const Operator& op, c10::ArrayRef<c10::IValue> arguments, bool bake);

/// The arguments of a call as its signature has them: vectors where it is signed as one on vectors.
std::vector<at::IValue> signed_arguments(c10::ArrayRef<at::IValue> arguments, const CallSignature& signature);

/// Moves what PyTorch lets live on the CPU beside device tensors to the device (0-dim tensors, index tensors), in
/// place in `arguments`, and returns the one device of the call. Throws RuntimeError "Expected all tensors to be on the
/// same device" for anything else.
c10::DeviceIndex unify_devices(const Operator& op, Arguments& arguments);

/// Writes the call's signature into an empty one. With `bake`, scalar values are part of the bytes and no inputs.
/// Returns false if an argument has a type that no plan can take.
bool make_signature(const Operator& op, c10::ArrayRef<c10::IValue> arguments, bool bake, CallSignature& signature);

}  // namespace outboard::aten
