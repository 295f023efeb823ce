// SPDX-License-Identifier: Apache-2.0
// Made by tools/operator_facts.py of src/outboard/compiler/operators/facts.py: change that, and run it.
#pragma once

#include <string>
#include <unordered_map>

#include "torch/eager/result_layout.h"

namespace outboard::aten {

/// By qualified name: "aten::index_put_". Leaked, as operators run until the process ends.
inline const std::unordered_map<std::string, ResultLayout>& result_layouts() {
  static const auto* const all = new std::unordered_map<std::string, ResultLayout>{
      {"aten::abs", {ResultLayout::kContiguousOfComplex}},
      {"aten::addr", {ResultLayout::kOfFirstAlone}},
      {"aten::angle", {ResultLayout::kContiguousOfComplex}},
      {"aten::copysign", {ResultLayout::kOfFirstOperand}},
      {"aten::div", {ResultLayout::kOfFirstOperand}},
      {"aten::elu_backward", {ResultLayout::kOfFirstOperand}},
      {"aten::_fft_c2c", {ResultLayout::kContiguous}},
      {"aten::_fft_c2r", {ResultLayout::kContiguous}},
      {"aten::_fft_r2c", {ResultLayout::kContiguous}},
      {"aten::floor_divide", {ResultLayout::kOfFirstOperand}},
      {"aten::glu_backward", {ResultLayout::kContiguous}},
      {"aten::hardshrink_backward", {ResultLayout::kOfFirstOperand}},
      {"aten::hardsigmoid_backward", {ResultLayout::kOfFirstOperand}},
      {"aten::hardswish_backward", {ResultLayout::kOfFirstOperand}},
      {"aten::hardtanh_backward", {ResultLayout::kOfFirstOperand}},
      {"aten::log_sigmoid_forward", {ResultLayout::kContiguous}},
      {"aten::_log_softmax_backward_data", {ResultLayout::kContiguous}},
      {"aten::logit_backward", {ResultLayout::kOfFirstOperand}},
      {"aten::masked_fill", {ResultLayout::kContiguous}},
      {"aten::max_unpool2d", {ResultLayout::kOfFormat, 0}},
      {"aten::mvlgamma", {ResultLayout::kContiguous}},
      {"aten::native_batch_norm_backward", {ResultLayout::kOfFormat, 1}},
      {"aten::native_dropout_backward", {ResultLayout::kOfFirstOperand}},
      {"aten::native_group_norm_backward", {ResultLayout::kOfFormat, 1}},
      {"aten::native_layer_norm_backward", {ResultLayout::kContiguous}},
      {"aten::nonzero_static", {ResultLayout::kContiguous}},
      {"aten::normal", {ResultLayout::kContiguous}},
      {"aten::pixel_shuffle", {ResultLayout::kOfFormat, 0}},
      {"aten::pixel_unshuffle", {ResultLayout::kOfFormat, 0}},
      {"aten::put", {ResultLayout::kOfFirstAlone}},
      {"aten::reflection_pad2d", {ResultLayout::kOfFormat, 0}},
      {"aten::reflection_pad2d_backward", {ResultLayout::kOfFormat, 1}},
      {"aten::reflection_pad3d", {ResultLayout::kOfFormat, 0}},
      {"aten::reflection_pad3d_backward", {ResultLayout::kOfFormat, 1}},
      {"aten::replication_pad2d", {ResultLayout::kOfFormat, 0}},
      {"aten::replication_pad2d_backward", {ResultLayout::kOfFormat, 1}},
      {"aten::replication_pad3d", {ResultLayout::kOfFormat, 0}},
      {"aten::replication_pad3d_backward", {ResultLayout::kOfFormat, 1}},
      {"aten::roll", {ResultLayout::kOfFormat, 0}},
      {"aten::softshrink_backward", {ResultLayout::kOfFirstOperand}},
      {"aten::softplus_backward", {ResultLayout::kOfFirstOperand}},
      {"aten::special_xlog1py", {ResultLayout::kOfFirstOperand}},
      {"aten::unfold_backward", {ResultLayout::kContiguous}},
      {"aten::xlogy", {ResultLayout::kOfFirstOperand}},
  };
  return *all;
}

}  // namespace outboard::aten
