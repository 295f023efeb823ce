// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/backward_nodes.h"

#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace outboard::aten {

namespace autograd = torch::autograd;

at::Tensor joined_to_inputs_of(PyObject* context) {
  TORCH_CHECK_TYPE(THPFunction_Check(context), "expected the ctx of a torch.autograd.Function");
  const auto node = reinterpret_cast<THPFunction*>(context)->cdata;
  TORCH_CHECK_TYPE(node, "the node of this ctx is no more");
  auto refusal = c10::make_intrusive<autograd::Error>("torch.compile does not support double backward",
                                                      autograd::edge_list(node->next_edges()));
  auto joined = at::empty({0});
  refusal->add_input_metadata(joined);
  autograd::impl::set_gradient_edge(joined, {std::move(refusal), 0});
  return joined;
}

}  // namespace outboard::aten
