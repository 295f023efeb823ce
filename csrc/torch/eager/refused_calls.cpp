// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/refused_calls.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "runtime/base/error.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/tensor.h"
#include "torch/eager/eager.h"
#include "torch/eager/operator_call.h"

namespace outboard::aten {
namespace {

/// On tensors of the device over the plan's own memory.
class DeviceOperatorCall : public OperatorCall {
 public:
  explicit DeviceOperatorCall(HostCall& call) : OperatorCall(call) {}

  void run() {
    // Nobody's: neither autograd's, nor that of a mode which watches the operators that its user calls.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard unwatched(c10::python_ks);
    OperatorCall::run();
  }

 private:
  void carry_out(const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    // A step that is not the library's is any operator, one that has a kernel of its own, such as a view, among them.
    if (!is_refused_by_library()) return op.callBoxed(&stack);
    eager_without_library(operator_of(op), &stack);
  }

  bool is_refused_by_library() const { return call().step.name.rfind("device::", 0) != 0; }

  c10::Device device() const override {
    return torch_device(static_cast<c10::DeviceIndex>(call().stream.device().index()));
  }

  at::Tensor tensor(const TensorView& view, bool /*written*/) override { return over(view); }

  void store(const TensorView& view, const at::Tensor& made) override { copy(made, over(view)); }

  at::Tensor over(const TensorView& view) {
    const auto dtype = static_cast<at::ScalarType>(view.dtype);
    if (view.allocation == nullptr) {
      return empty_strided(view.sizes, view.strides, dtype, device().index());
    }
    const uint64_t item = c10::elementSize(dtype);
    if (view.offset % item != 0) throw Error(OB_INVALID_ARGUMENT, "a plan's view begins inside an element");
    view.allocation->retain();
    return make_tensor(view.allocation, dtype, view.sizes, view.strides, static_cast<int64_t>(view.offset / item));
  }
};

}  // namespace

void register_refused_calls() {
  HostFunctions::get().add("device::*", [](HostCall& call) { DeviceOperatorCall(call).run(); });
}

}  // namespace outboard::aten
