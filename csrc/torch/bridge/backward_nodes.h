// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/python_headers.h>

namespace outboard::aten {

/// An empty tensor on the CPU, float32 and of no elements, from which the history of a node's inputs is reached: its
/// gradient goes where that node's does, and raises. `context` is the `ctx` of a torch.autograd.Function whose backward
/// pass runs; needs the GIL. Throws TypeError if it is none, or its node is no more.
at::Tensor joined_to_inputs_of(PyObject* context);

}  // namespace outboard::aten
