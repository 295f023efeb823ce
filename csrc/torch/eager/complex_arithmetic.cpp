// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/complex_arithmetic.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device.h"
#include "torch/bridge/device_type.h"
#include "torch/bridge/devices.h"
#include "torch/eager/out_arguments.h"

namespace outboard::aten {
namespace {

/// A complex number, or a tensor, as an operator is given it.
struct Operand {
  std::optional<at::Tensor> tensor;
  c10::complex<double> number{};
};

/// The arguments of a call by name.
class Call {
 public:
  Call(const Operator& op, const torch::jit::Stack& stack)
      : op_(op), arguments_(stack.end() - static_cast<std::ptrdiff_t>(op.roles.size()), stack.end()) {}

  const c10::IValue& operator[](const char* name) const {
    return arguments_[op_.handle.schema().argumentIndexWithName(name).value()];
  }
  bool has(const char* name) const { return op_.handle.schema().argumentIndexWithName(name).has_value(); }

  at::Tensor tensor(const char* name) const { return (*this)[name].toTensor(); }

  Operand operand(const char* name) const {
    const c10::IValue& value = (*this)[name];
    if (value.isScalar()) return {std::nullopt, value.toScalar().to<c10::complex<double>>()};
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.is_cpu()) return {tensor};
    return {std::nullopt, tensor.item().to<c10::complex<double>>()};  // a number of one element
  }

  /// Where results are written: arguments, in the order of results.
  std::optional<at::Tensor> written() const {
    const int alias = op_.aliased_argument.at(0);
    return alias < 0 ? std::nullopt : std::optional(arguments_[static_cast<size_t>(alias)].toTensor());
  }

  /// Whether each tensor is the device's, or a number that PyTorch wrapped, of a dtype that the device computes with,
  /// and at least one that is read is complex.
  bool is_complex() const {
    bool found = false;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!arguments_[i].isTensor()) continue;
      const at::Tensor& tensor = arguments_[i].toTensor();
      if (!tensor.defined() || !is_possible(tensor)) return false;
      found = found || (tensor.is_complex() && !op_.is_out[i]);
    }
    return found;
  }

 private:
  static bool is_possible(const at::Tensor& tensor) {
    if (tensor.is_cpu()) return tensor.unsafeGetTensorImpl()->is_wrapped_number();
    if (!tensor.is_privateuseone() || tensor.layout() != at::kStrided) return false;
    const at::ScalarType real = c10::toRealValueType(tensor.scalar_type());
    if (tensor.is_complex() && real == at::kHalf) return false;
    return real != at::kDouble || Runtime::get().device(tensor.device().index()).properties().has_fp64 != 0;
  }

  const Operator& op_;
  const std::vector<c10::IValue> arguments_;
};

/// [..., 2] numbers of a complex tensor, [..., 1] of a real one, of a dtype.
at::Tensor pairs_of(const at::Tensor& tensor, at::ScalarType real) {
  const at::Tensor pairs = tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor.unsqueeze(-1);
  return pairs.to(real);
}

at::Tensor meta_of(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
}

/// A new tensor, as the sum of the operands would lie.
at::Tensor result_like(const Operand& a, const Operand& b, at::ScalarType dtype) {
  const at::Tensor& one = a.tensor ? *a.tensor : *b.tensor;
  const at::Tensor shape =
      a.tensor && b.tensor ? at::add(meta_of(*a.tensor), meta_of(*b.tensor)) : at::add(meta_of(one), c10::Scalar(1));
  return at::empty_strided(shape.sizes(), shape.strides(), one.options().dtype(dtype));
}

/// The dtype of the result of "self" and "other", which may be a number.
at::ScalarType common_dtype(const Call& call) {
  if (call["other"].isScalar()) return at::result_type(call.tensor("self"), call["other"].toScalar());
  return at::result_type(call.tensor("self"), call.tensor("other"));
}

/// Calls an operator over pairs: what it writes to, two operands of which one may be a number, and more numbers.
at::Tensor on_pairs(const char* name, const Operand& a, const Operand& b, at::ScalarType dtype,
                    const std::vector<c10::IValue>& more = {}) {
  const at::ScalarType real = c10::toRealValueType(dtype);
  const at::Tensor result = result_like(a, b, dtype);
  const auto pairs = [&](const Operand& operand) {
    return operand.tensor ? c10::IValue(pairs_of(*operand.tensor, real)) : c10::IValue();
  };
  const c10::complex<double> number = a.tensor ? b.number : a.number;
  torch::jit::Stack stack{at::view_as_real(result), pairs(a), pairs(b), number.real(), number.imag()};
  stack.insert(stack.end(), more.begin(), more.end());
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&stack);
  return result;
}

at::Tensor sum_of(const Call& call, const Operand& a, const Operand& b, c10::complex<double> alpha) {
  return on_pairs("outboard::pairs_add_", a, b, common_dtype(call), {alpha.real(), alpha.imag()});
}

c10::complex<double> alpha_of(const Call& call) { return call["alpha"].toScalar().to<c10::complex<double>>(); }

at::Tensor add(const Call& call) { return sum_of(call, call.operand("self"), call.operand("other"), alpha_of(call)); }

at::Tensor sub(const Call& call) { return sum_of(call, call.operand("self"), call.operand("other"), -alpha_of(call)); }

at::Tensor rsub(const Call& call) { return sum_of(call, call.operand("other"), call.operand("self"), -alpha_of(call)); }

at::Tensor mul(const Call& call) {
  return on_pairs("outboard::pairs_mul_", call.operand("self"), call.operand("other"), common_dtype(call));
}

at::Tensor div(const Call& call) {
  return on_pairs("outboard::pairs_div_", call.operand("self"), call.operand("other"), common_dtype(call));
}

at::Tensor reciprocal(const Call& call) {
  return on_pairs("outboard::pairs_div_", {std::nullopt, 1}, call.operand("self"), call.tensor("self").scalar_type());
}

at::Tensor neg(const Call& call) {
  const at::Tensor self = call.tensor("self");
  return at::view_as_complex(at::neg(at::view_as_real(self.resolve_conj())));
}

at::Tensor abs(const Call& call) {
  const at::Tensor self = call.tensor("self").resolve_conj();
  return at::hypot(at::real(self), at::imag(self));
}

at::Tensor angle(const Call& call) {
  const at::Tensor self = call.tensor("self").resolve_conj();
  at::Tensor result = at::empty(self.sizes(), self.options().dtype(c10::toRealValueType(self.scalar_type())));
  return at::atan2_out(result, at::imag(self), at::real(self));
}

/// Real dimensions of a reduction over complex numbers; all if none are given.
std::vector<int64_t> dims_of(const Call& call, int64_t rank) {
  std::vector<int64_t> dims;
  if (call.has("dim") && !call["dim"].isNone()) dims = call["dim"].toIntVector();
  for (int64_t& dim : dims) dim = c10::maybe_wrap_dim(dim, rank);
  if (dims.empty()) {
    for (int64_t dim = 0; dim < rank; ++dim) dims.push_back(dim);
  }
  return dims;
}

template <typename Reduce>
at::Tensor reduced(const Call& call, Reduce&& reduce) {
  const at::Tensor self = call.tensor("self").resolve_conj();
  const at::Tensor pairs = at::view_as_real(self);
  const bool keep = call.has("keepdim") && call["keepdim"].toBool();
  return at::view_as_complex(reduce(pairs, dims_of(call, self.dim()), keep).contiguous());
}

at::Tensor sum(const Call& call) {
  return reduced(call, [](const at::Tensor& pairs, at::IntArrayRef dims, bool keep) {
    return dims.empty() ? pairs : at::sum(pairs, dims, keep);
  });
}

at::Tensor mean(const Call& call) {
  return reduced(call, [](const at::Tensor& pairs, at::IntArrayRef dims, bool keep) {
    return dims.empty() ? pairs : at::mean(pairs, dims, keep);
  });
}

/// The product of matrices by four products of real ones.
template <typename Product>
at::Tensor product(const at::Tensor& first, const at::Tensor& second, Product&& of) {
  const at::Tensor a = first.resolve_conj(), b = second.resolve_conj();
  const at::Tensor ar = at::real(a).contiguous(), ai = at::imag(a).contiguous();
  const at::Tensor br = at::real(b).contiguous(), bi = at::imag(b).contiguous();
  return at::view_as_complex(at::stack({of(ar, br) - of(ai, bi), of(ar, bi) + of(ai, br)}, -1));
}

at::Tensor mm(const Call& call) {
  return product(call.tensor("self"), call.tensor("mat2"),
                 [](const at::Tensor& a, const at::Tensor& b) { return at::mm(a, b); });
}

at::Tensor bmm(const Call& call) {
  return product(call.tensor("self"), call.tensor("mat2"),
                 [](const at::Tensor& a, const at::Tensor& b) { return at::bmm(a, b); });
}

struct Function {
  at::Tensor (*compute)(const Call& call);
  bool (*takes)(const Call& call) = nullptr;  ///< none: any call
};

bool has_no_dtype(const Call& call) { return call["dtype"].isNone(); }
bool are_both_complex(const Call& call) {
  return call.tensor("self").scalar_type() == call.tensor("mat2").scalar_type();
}

/// By the operator's name without overload.
const std::map<std::string, Function>& functions() {
  static const std::map<std::string, Function> all{
      {"aten::add", {add}},
      {"aten::sub", {sub}},
      {"aten::rsub", {rsub}},
      {"aten::mul", {mul}},
      {"aten::div", {div, [](const Call& call) { return !call.has("rounding_mode"); }}},
      {"aten::reciprocal", {reciprocal}},
      {"aten::neg", {neg}},
      {"aten::abs", {abs, [](const Call& call) { return !call.written(); }}},
      {"aten::angle", {angle, [](const Call& call) { return !call.written(); }}},
      {"aten::sum", {sum, has_no_dtype}},
      {"aten::mean", {mean, has_no_dtype}},
      {"aten::mm", {mm, are_both_complex}},
      {"aten::bmm", {bmm, are_both_complex}},
  };
  return all;
}

const Function* function_of(const Operator& op) {
  std::string base = op.name.substr(0, op.name.find('.'));
  if (base.back() == '_') base.pop_back();
  const auto found = functions().find(base);
  return found == functions().end() ? nullptr : &found->second;
}

/// Writes a result to an argument, as the CPU would take it.
void give(const at::Tensor& target, const at::Tensor& result, bool is_out) {
  TORCH_CHECK(c10::canCast(result.scalar_type(), target.scalar_type()), "result type ",
              c10::toString(result.scalar_type()), " can't be cast to the desired output type ",
              c10::toString(target.scalar_type()));
  if (is_out) return write_out(target, result);
  TORCH_CHECK(target.sizes() == result.sizes(), "output with shape ", target.sizes(),
              " doesn't match the broadcast shape ", result.sizes());
  target.copy_(result);
}

}  // namespace

bool compute_complex(const Operator& op, torch::jit::Stack* stack) {
  const Function* function = function_of(op);
  if (function == nullptr || op.aliased_argument.size() != 1) return false;
  const Call call(op, *stack);
  if (!call.is_complex() || (function->takes != nullptr && !function->takes(call))) return false;
  at::Tensor result = function->compute(call);
  if (const std::optional<at::Tensor> target = call.written()) {
    give(*target, result, op.out_variant);
    result = *target;
  }
  torch::jit::drop(*stack, op.roles.size());
  stack->emplace_back(std::move(result));
  return true;
}

TORCH_LIBRARY_FRAGMENT(outboard, m) {
  m.def(
      "pairs_add_(Tensor(a!) out, Tensor? self, Tensor? other, Scalar re, Scalar im, Scalar alpha_re, Scalar alpha_im) "
      "-> ()");
  m.def("pairs_mul_(Tensor(a!) out, Tensor? self, Tensor? other, Scalar re, Scalar im) -> ()");
  m.def("pairs_div_(Tensor(a!) out, Tensor? self, Tensor? other, Scalar re, Scalar im) -> ()");
}

}  // namespace outboard::aten
