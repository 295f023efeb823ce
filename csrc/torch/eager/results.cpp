// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/results.h"

#include "torch/bridge/tensor.h"

namespace outboard::aten {

at::Tensor new_tensor(const Result& result) {
  return make_tensor(result.allocation, static_cast<at::ScalarType>(result.dtype), result.sizes, result.strides,
                     result.storage_offset);
}

void share_versions(const at::Tensor& view, const at::Tensor& base) {
  if (view.is_inference() || base.is_inference()) return;  // writes to those are not counted
  view.unsafeGetTensorImpl()->set_version_counter(base.unsafeGetTensorImpl()->version_counter());
}

c10::IValue to_ivalue(const Result& result, c10::ArrayRef<const at::Tensor*> tensors) {
  switch (result.kind) {
    case Output::kNone:
      return {};
    case Output::kInt:
      return result.scalar.i;
    case Output::kFloatSymbol:
      return result.scalar.d;
    case Output::kInput:
      return *tensors[result.input];
    case Output::kTensor:
      break;
  }
  if (!result.new_allocation) {
    const at::Tensor& base = *tensors[result.input];
    at::Tensor view = base.as_strided(result.sizes, result.strides, result.storage_offset);
    share_versions(view, base);
    return view;
  }
  return new_tensor(result);
}

}  // namespace outboard::aten
