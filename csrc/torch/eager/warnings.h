// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>

namespace outboard::aten {

struct Operator;

/// Warns of arguments with which an operator computes all the same, in the words of PyTorch's CPU kernel. A plan
/// cannot: what it was made from may be another process's call.
using Warning = void (*)(const Operator& op, c10::ArrayRef<c10::IValue> arguments);

/// Of `var`, `std` and their kin over too few elements.
void degrees_of_freedom(const Operator& op, c10::ArrayRef<c10::IValue> arguments);

/// Of bytes as the condition of `where`.
void byte_condition(const Operator& op, c10::ArrayRef<c10::IValue> arguments);

/// Of `scatter` with a tensor that is reduced.
void scatter_reduction(const Operator& op, c10::ArrayRef<c10::IValue> arguments);

/// Of `index_reduce`, which may change.
void beta(const Operator& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace outboard::aten
