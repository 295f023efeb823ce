// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/cpu_operators.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>

#include <utility>
#include <vector>

#include "torch/bridge/tensor.h"
#include "torch/eager/fallback.h"
#include "torch/eager/operator_call.h"

namespace outboard::aten {
namespace {

/// On CPU tensors over the same memory (or, where the host cannot address it, over copies).
class CpuOperatorCall : public OperatorCall {
 public:
  explicit CpuOperatorCall(HostCall& call) : OperatorCall(call), in_place_(call.stream.device().host_accessible()) {}

  void run() {
    call().stream.synchronize();
    OperatorCall::run();
    for (const auto& [view, cpu] : written_back_) copy_to_device(view, cpu);
  }

 private:
  void carry_out(const c10::OperatorHandle& op, torch::jit::Stack& stack) override { op.callBoxed(&stack); }

  c10::Device device() const override { return c10::kCPU; }

  static at::TensorOptions options_of(const TensorView& view) {
    return at::TensorOptions().dtype(static_cast<at::ScalarType>(view.dtype)).device(c10::kCPU);
  }

  /// The view's own memory as a CPU tensor.
  static at::Tensor in_place(const TensorView& view) {
    return at::from_blob(reinterpret_cast<void*>(view.data), view.sizes, view.strides, options_of(view));
  }

  at::Tensor tensor(const TensorView& view, bool written) override {
    if (in_place_) return in_place(view);
    at::Tensor cpu = at::empty_strided(view.sizes, view.strides, options_of(view));
    lending(call().stream, cpu, [&] {
      call().stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(cpu.mutable_data_ptr()), view.data, extent(cpu));
      call().stream.synchronize();
    });
    if (written) written_back_.emplace_back(view, cpu);
    return cpu;
  }

  /// Bytes from the first to the last element.
  static uint64_t extent(const at::Tensor& tensor) { return tensor.numel() == 0 ? 0 : tensor.storage().nbytes(); }

  void copy_to_device(const TensorView& view, const at::Tensor& cpu) {
    lending(call().stream, cpu, [&] {
      call().stream.copy(OB_HOST_TO_DEVICE, view.data, reinterpret_cast<uint64_t>(cpu.const_data_ptr()), extent(cpu));
      call().stream.synchronize();
    });
  }

  void store(const TensorView& view, const at::Tensor& made) override {
    if (in_place_) {
      copy(made, in_place(view));
      return;
    }
    at::Tensor laid_out = at::empty_strided(view.sizes, view.strides, options_of(view));
    copy(made, laid_out);
    copy_to_device(view, laid_out);
  }

  bool in_place_;
  std::vector<std::pair<TensorView, at::Tensor>> written_back_;
};

void run_operator(HostCall& call) {
  RECORD_FUNCTION(call.step.name, c10::ArrayRef<const c10::IValue>{});
  if (call.step.fallback) admit_fallback(call.step.name);
  CpuOperatorCall(call).run();
  if (call.step.fallback) note_fallback(call.step.name);
}

}  // namespace

void register_cpu_operators() {
  HostFunctions::get().add("aten::*", run_operator);
  HostFunctions::get().add("mkldnn::*", run_operator);
  HostFunctions::get().add("prims::*", run_operator);
}

}  // namespace outboard::aten
