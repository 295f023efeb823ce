// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/complex_moves.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/real.h>
#include <c10/util/bit_cast.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch/bridge/device_type.h"
#include "torch/eager/map_tensors.h"
#include "torch/eager/out_arguments.h"

namespace outboard::aten {
namespace {

/// A part of each complex number, which moves as it does.
enum class Part { kAllBits, kReal, kImaginary };

bool is_wrapped(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->is_wrapped_number(); }

at::ScalarType dtype_of(Part part, at::ScalarType dtype) {
  if (part != Part::kAllBits) return c10::toRealValueType(dtype);
  return dtype == at::kComplexFloat ? at::kLong : at::kInt;
}

/// A part of a number as it is written among elements of `dtype`.
at::Scalar part_of(const at::Scalar& number, at::ScalarType dtype, Part part) {
  const auto wide = number.to<c10::complex<double>>();
  if (part == Part::kReal) return wide.real();
  if (part == Part::kImaginary) return wide.imag();
  if (dtype == at::kComplexFloat) return c10::bit_cast<int64_t>(number.to<c10::complex<float>>());
  return static_cast<int64_t>(c10::bit_cast<int32_t>(number.to<c10::complex<c10::Half>>()));
}

/// One call of an operator that moves elements.
class Move {
 public:
  Move(const Operator& op, torch::jit::Stack* stack)
      : op_(op), stack_(stack), first_(stack->size() - op.roles.size()) {}

  /// Whether all that moves is complex, of one dtype, and nothing is computed with it.
  bool is_possible() {
    for (size_t i = 0; i < op_.roles.size(); ++i) {
      if (!is_possible(i)) return false;
    }
    return dtype_.has_value();
  }

  void run() {
    std::optional<torch::jit::Stack> whole = call_of_integers();
    const bool has_integer = whole.has_value();
    const torch::jit::Stack first = has_integer ? *std::move(whole) : call(Part::kReal);
    const torch::jit::Stack second = has_integer ? torch::jit::Stack() : call(Part::kImaginary);
    torch::jit::Stack results;
    for (size_t k = 0; k < op_.aliased_argument.size(); ++k) {
      const int alias = op_.aliased_argument[k];
      if (alias >= 0) results.push_back(argument(static_cast<size_t>(alias)));
      if (alias >= 0 && !op_.out_variant) continue;
      const at::Tensor& part = first[k].toTensor();
      const at::Tensor result = has_integer ? part.view(*dtype_) : of_parts(part, second[k].toTensor());
      if (alias >= 0) {
        write_out(results.back().toTensor(), result);
      } else {
        results.emplace_back(result);
      }
    }
    torch::jit::drop(*stack_, op_.roles.size());
    stack_->insert(stack_->end(), results.begin(), results.end());
  }

 private:
  const c10::IValue& argument(size_t i) const { return (*stack_)[first_ + i]; }
  const c10::Argument& declared(size_t i) const { return op_.handle.schema().arguments()[i]; }

  bool moves(size_t i) const {
    const std::vector<std::string>& names = op_.facts.moves;
    return op_.is_out[i] || std::find(names.begin(), names.end(), declared(i).name()) != names.end();
  }

  bool is_possible(size_t i) {
    const c10::IValue& value = argument(i);
    if (declared(i).name() == "accumulate") return !value.toBool();
    if (declared(i).name() == "reduce") return false;
    if (!moves(i)) return op_.roles[i] != ArgumentRole::kScalar;
    bool all = true;
    map_tensors(value, [&](const at::Tensor& tensor) {
      all = all && is_possible(tensor);
      return tensor;
    });
    return all;
  }

  bool is_possible(const at::Tensor& tensor) {
    if (is_wrapped(tensor)) return true;
    if (!tensor.is_privateuseone() || !tensor.is_complex()) return false;
    if (!dtype_) dtype_ = tensor.scalar_type();
    return dtype_ == tensor.scalar_type();
  }

  /// Results of the operator on integers of the same bits. None where there are no such integers, or where PyTorch has
  /// the operator for floats alone.
  std::optional<torch::jit::Stack> call_of_integers() const {
    if (*dtype_ == at::kComplexDouble) return std::nullopt;
    try {
      return call(Part::kAllBits);
    } catch (const c10::NotImplementedError&) {
      return std::nullopt;
    }
  }

  torch::jit::Stack call(Part part) const {
    torch::jit::Stack arguments;
    for (size_t i = 0; i < op_.roles.size(); ++i) arguments.push_back(moves(i) ? part_of(i, part) : argument(i));
    op_.handle.callBoxed(&arguments);
    return arguments;
  }

  c10::IValue part_of(size_t i, Part part) const {
    const c10::IValue& value = argument(i);
    if (value.isScalar()) return aten::part_of(value.toScalar(), *dtype_, part);
    return map_tensors(value, [&](const at::Tensor& tensor) {
      return op_.is_out[i] ? at::empty({0}, tensor.options().dtype(dtype_of(part, *dtype_))) : part_of(tensor, part);
    });
  }

  at::Tensor part_of(const at::Tensor& tensor, Part part) const {
    const at::Tensor whole = is_wrapped(tensor) ? tensor.to(device(), *dtype_)
                             : tensor.is_conj() ? tensor.resolve_conj()
                                                : tensor;
    if (part == Part::kReal) return at::real(whole);
    if (part == Part::kImaginary) return at::imag(whole);
    return whole.view(dtype_of(part, *dtype_));
  }

  /// Complex numbers that lie as their real parts do.
  at::Tensor of_parts(const at::Tensor& real, const at::Tensor& imaginary) const {
    const at::Tensor made = at::empty_strided(real.sizes(), real.strides(), real.options().dtype(*dtype_));
    at::real(made).copy_(real);
    at::imag(made).copy_(imaginary);
    return made;
  }

  c10::Device device() const {
    for (size_t i = 0; i < op_.roles.size(); ++i) {
      if (argument(i).isTensor() && argument(i).toTensor().is_privateuseone()) return argument(i).toTensor().device();
    }
    TORCH_INTERNAL_ASSERT(false, op_.name, " moves nothing of a device");
  }

  const Operator& op_;
  torch::jit::Stack* stack_;
  const size_t first_;
  std::optional<at::ScalarType> dtype_;
};

}  // namespace

bool move_complex(const Operator& op, torch::jit::Stack* stack) {
  if (op.facts.moves.empty()) return false;
  Move move(op, stack);
  if (!move.is_possible()) return false;
  move.run();
  return true;
}

}  // namespace outboard::aten
