// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/complex_arithmetic.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <initializer_list>
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
  c10::complex<double> number(const char* name) const { return (*this)[name].toScalar().to<c10::complex<double>>(); }
  /// The operator's name without namespace and overload; of one in place, that of the function.
  std::string function() const;

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

  /// Whether each tensor is the device's, or a number on the CPU that is only read, of a dtype that the device computes
  /// with, and at least one that is read is complex, if the operator does not make complex numbers of real ones.
  bool is_complex(bool makes_complex) const {
    bool found = makes_complex;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!arguments_[i].isTensor()) continue;
      const at::Tensor& tensor = arguments_[i].toTensor();
      if (!tensor.defined() || !is_possible(tensor)) return false;
      found = found || (tensor.is_complex() && !op_.is_out[i]);
    }
    return found || is_complex_number("self") || is_complex_number("other");
  }

 private:
  bool is_complex_number(const char* name) const { return has(name) && (*this)[name].isComplexDouble(); }

  static bool is_possible(const at::Tensor& tensor) {
    if (tensor.is_cpu()) return tensor.dim() == 0;
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

/// The dtype of the result of "self" and another operand. One of them may be a number.
at::ScalarType common_dtype(const Call& call, const char* other = "other") {
  if (call["self"].isScalar()) return at::result_type(call["self"].toScalar(), call.tensor(other));
  if (call[other].isScalar()) return at::result_type(call.tensor("self"), call[other].toScalar());
  return at::result_type(call.tensor("self"), call.tensor(other));
}

void call_own(const char* name, torch::jit::Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&stack);
}

/// Calls an operator over pairs: what it writes to, numbers of a dtype or whether something holds, two operands of
/// which one may be a number, and more numbers.
at::Tensor on_pairs(const char* name, const Operand& a, const Operand& b, at::ScalarType dtype,
                    const std::vector<c10::IValue>& more = {}, bool asks = false) {
  const at::ScalarType real = c10::toRealValueType(dtype);
  const at::Tensor result = result_like(a, b, asks ? at::kBool : dtype);
  const auto pairs = [&](const Operand& operand) {
    return operand.tensor ? c10::IValue(pairs_of(*operand.tensor, real)) : c10::IValue();
  };
  const c10::complex<double> number = a.tensor ? b.number : a.number;
  torch::jit::Stack stack{asks ? result.unsqueeze(-1) : at::view_as_real(result), pairs(a), pairs(b), number.real(),
                          number.imag()};
  stack.insert(stack.end(), more.begin(), more.end());
  call_own(name, std::move(stack));
  return result;
}

/// A function of each number, which complex_pairs.py has by that name.
at::Tensor function_of(const at::Tensor& self, const std::string& name) {
  const at::Tensor result = result_like({self}, {}, self.scalar_type());
  call_own("outboard::pairs_function_",
           {at::view_as_real(result), pairs_of(self, c10::toRealValueType(self.scalar_type())), name});
  return result;
}

at::Tensor by_name(const Call& call) { return function_of(call.tensor("self"), call.function()); }

at::Tensor sum_of(const Call& call, const Operand& a, const Operand& b, c10::complex<double> alpha) {
  return on_pairs("outboard::pairs_add_", a, b, common_dtype(call), {alpha.real(), alpha.imag()});
}

c10::complex<double> alpha_of(const Call& call) { return call.number("alpha"); }

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

at::Tensor eq(const Call& call) {
  return on_pairs("outboard::pairs_eq_", call.operand("self"), call.operand("other"), common_dtype(call), {}, true);
}

at::Tensor ne(const Call& call) { return at::logical_not(eq(call)); }

/// Whether something holds of one part or the other.
template <at::Tensor (*Asks)(const at::Tensor&)>
at::Tensor either(const Call& call) {
  const at::Tensor self = call.tensor("self").resolve_conj();
  return at::logical_or(Asks(at::real(self)), Asks(at::imag(self)));
}

/// Exponents for which the CPU computes something simpler.
const std::map<double, const char*>& powers() {
  static const std::map<double, const char*> all{
      {-2, "inverse square"}, {-1, "reciprocal"}, {-0.5, "rsqrt"}, {0, "one"},
      {0.5, "sqrt"},          {1, "itself"},      {2, "square"},   {3, "cube"}};
  return all;
}

at::Tensor pow(const Call& call) {
  const at::ScalarType dtype = common_dtype(call, "exponent");
  if (call["exponent"].isScalar()) {
    const c10::complex<double> exponent = call.number("exponent");
    const auto found = powers().find(exponent.real());
    if (exponent.imag() == 0 && found != powers().end()) return function_of(call.tensor("self"), found->second);
  }
  const at::Tensor result = on_pairs("outboard::pairs_pow_", call.operand("self"), call.operand("exponent"), dtype);
  return call["self"].isScalar() ? result.contiguous() : result;  // so PyTorch has it
}

/// A new complex tensor, as the sum of two real ones would lie, to the parts of which `write` writes.
template <typename Write>
at::Tensor of_parts(const at::Tensor& a, const at::Tensor& b, Write&& write) {
  at::Tensor result = result_like({a}, {b}, c10::toComplexType(a.scalar_type()));
  write(at::real(result), at::imag(result));
  return result;
}

at::Tensor complex(const Call& call) {
  const at::Tensor real = call.tensor("real"), imag = call.tensor("imag");
  return of_parts(real, imag, [&](const at::Tensor& first, const at::Tensor& second) {
    first.copy_(real);
    second.copy_(imag);
  });
}

at::Tensor polar(const Call& call) {
  const at::Tensor size = call.tensor("abs"), angle = call.tensor("angle");
  return of_parts(size, angle, [&](const at::Tensor& first, const at::Tensor& second) {
    first.copy_(size * at::cos(angle));
    second.copy_(size * at::sin(angle));
  });
}

at::Tensor addcmul(const Call& call) {
  return at::add(call.tensor("self"),
                 at::mul(at::mul(call.tensor("tensor1"), call["value"].toScalar()), call.tensor("tensor2")));
}

at::Tensor addcdiv(const Call& call) {
  return at::add(call.tensor("self"),
                 at::div(at::mul(call.tensor("tensor1"), call["value"].toScalar()), call.tensor("tensor2")));
}

/// Real dimensions of a reduction over complex numbers; all if none are given.
std::vector<int64_t> dims_of(const Call& call, int64_t rank) {
  std::vector<int64_t> dims;
  if (call.has("dim") && !call["dim"].isNone()) dims = call["dim"].toIntVector();
  for (int64_t& dim : dims) dim = c10::maybe_wrap_dim(dim, rank);
  if (rank == 0) return {};
  if (dims.empty()) {
    for (int64_t dim = 0; dim < rank; ++dim) dims.push_back(dim);
  }
  return dims;
}

template <typename Reduce>
at::Tensor reduced(const Call& call, Reduce&& reduce) {
  const at::Tensor self = call.tensor("self").resolve_conj();
  const std::vector<int64_t> dims = dims_of(call, self.dim());
  if (dims.empty()) return self.clone();
  const bool keep = call.has("keepdim") && call["keepdim"].toBool();
  return at::view_as_complex(reduce(at::view_as_real(self), dims, keep).contiguous());
}

at::Tensor sum(const Call& call) {
  return reduced(call,
                 [](const at::Tensor& pairs, at::IntArrayRef dims, bool keep) { return at::sum(pairs, dims, keep); });
}

at::Tensor mean(const Call& call) {
  return reduced(call,
                 [](const at::Tensor& pairs, at::IntArrayRef dims, bool keep) { return at::mean(pairs, dims, keep); });
}

at::Tensor cumsum(const Call& call) {
  const at::Tensor self = call.tensor("self").resolve_conj();
  const int64_t dim = c10::maybe_wrap_dim(call["dim"].toInt(), self.dim());
  return at::view_as_complex(at::cumsum(at::view_as_real(self), dim).contiguous());
}

/// The product along a dimension, of halves and of halves of these: as many launches as its size has digits.
at::Tensor product_along(at::Tensor factors, int64_t dim) {
  if (factors.size(dim) == 0) factors = at::ones_like(factors.sum(dim, true));
  if (factors.size(dim) == 1) return factors.clone(at::MemoryFormat::Contiguous);  // the result is a tensor of its own
  while (factors.size(dim) > 1) {
    const int64_t size = factors.size(dim), half = size / 2;
    const at::Tensor products = at::mul(factors.narrow(dim, 0, half), factors.narrow(dim, half, half));
    factors = size % 2 ? at::cat({products, factors.narrow(dim, size - 1, 1)}, dim) : products;
  }
  return factors;
}

at::Tensor prod(const Call& call) {
  const at::Tensor self = call.tensor("self");
  if (!call.has("dim")) return product_along(self.flatten(), 0).squeeze(0);
  if (self.dim() == 0) return self.clone();
  const int64_t dim = c10::maybe_wrap_dim(call["dim"].toInt(), self.dim());
  const at::Tensor product = product_along(self, dim).contiguous();
  return call["keepdim"].toBool() ? product : product.squeeze(dim);
}

/// Whether a part of each number is not zero.
at::Tensor truth_of(const at::Tensor& tensor) {
  const at::Tensor self = tensor.resolve_conj();
  return at::logical_or(at::real(self), at::imag(self));
}

at::Tensor truth_of(const Operand& operand) {
  if (!operand.tensor) return at::scalar_tensor(operand.number != 0.0, at::kBool);
  return operand.tensor->is_complex() ? truth_of(*operand.tensor) : operand.tensor->to(at::kBool);
}

at::Tensor logical_not(const Call& call) { return at::logical_not(truth_of(call.tensor("self"))); }

template <at::Tensor (*Join)(const at::Tensor&, const at::Tensor&)>
at::Tensor joined_truth(const Call& call) {
  return Join(truth_of(call.operand("self")), truth_of(call.operand("other")));
}

/// A reduction of truth values along dimensions, one or a list, or along all.
template <typename Reduce>
at::Tensor reduced_truth(const Call& call, Reduce&& reduce) {
  const at::Tensor truth = truth_of(call.tensor("self"));
  if (!call.has("dim") || call["dim"].isNone())
    return reduce(truth, std::nullopt, call.has("dim") && call["keepdim"].toBool());
  const std::vector<int64_t> dims =
      call["dim"].isInt() ? std::vector<int64_t>{call["dim"].toInt()} : call["dim"].toIntVector();
  return reduce(truth, at::OptionalIntArrayRef(dims), call["keepdim"].toBool());
}

at::Tensor whether_any(const Call& call) {
  return reduced_truth(call, [](const at::Tensor& truth, at::OptionalIntArrayRef dims, bool keep) {
    return at::any(truth, dims, keep);
  });
}

at::Tensor whether_all(const Call& call) {
  return reduced_truth(call, [](const at::Tensor& truth, at::OptionalIntArrayRef dims, bool keep) {
    return at::all(truth, dims, keep);
  });
}

/// The sum of the variances of both parts.
at::Tensor var(const Call& call) {
  const at::Tensor self = call.tensor("self").resolve_conj();
  const auto dims = call["dim"].toOptional<std::vector<int64_t>>();
  const auto of = [&](const at::Tensor& part) {
    return at::var(part, dims ? at::OptionalIntArrayRef(*dims) : std::nullopt,
                   call["correction"].toOptional<at::Scalar>(), call["keepdim"].toBool());
  };
  return of(at::real(self)) + of(at::imag(self));
}

at::Tensor deviation(const Call& call) { return at::sqrt(var(call)); }

/// From the nearer end, as the CPU has it.
at::Tensor lerp(const Call& call) {
  const at::Tensor self = call.tensor("self"), end = call.tensor("end");
  const at::Tensor way = at::sub(end, self);
  if (call["weight"].isScalar()) {
    const c10::complex<double> weight = call.number("weight");
    return std::norm(weight) < 0.25 ? at::add(self, at::mul(way, weight)) : at::sub(end, at::mul(way, 1.0 - weight));
  }
  const at::Tensor weight = call.tensor("weight");
  const at::Tensor near = at::add(self, at::mul(weight, way)), far = at::sub(end, at::mul(way, at::rsub(weight, 1)));
  return at::where(at::lt(at::abs(weight), 0.5), near, far);
}

at::Tensor trace(const Call& call) { return at::sum(call.tensor("self").diagonal()); }

at::Tensor vector_norm(const Call& call) {
  const auto dims = call["dim"].toOptional<std::vector<int64_t>>();
  return at::linalg_vector_norm(at::abs(call.tensor("self")), call["ord"].toScalar(),
                                dims ? at::OptionalIntArrayRef(*dims) : std::nullopt, call["keepdim"].toBool());
}

at::Tensor dot(const Call& call) { return at::sum(at::mul(call.tensor("self"), call.tensor("tensor"))); }

at::Tensor vdot(const Call& call) { return at::sum(at::mul(call.tensor("self").conj(), call.tensor("other"))); }

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

at::Tensor mv(const Call& call) { return at::mm(call.tensor("self"), call.tensor("vec").unsqueeze(1)).squeeze(1); }

/// A product, times alpha, and what is added to it, times beta.
at::Tensor with_addend(const Call& call, const at::Tensor& product) {
  const at::Tensor scaled = at::mul(product, call["alpha"].toScalar());
  if (call.number("beta") == 0.0) return scaled;
  return at::add(scaled, at::mul(call.tensor("self"), call["beta"].toScalar()));
}

at::Tensor addmm(const Call& call) { return with_addend(call, at::mm(call.tensor("mat1"), call.tensor("mat2"))); }

at::Tensor addmv(const Call& call) { return with_addend(call, at::mv(call.tensor("mat"), call.tensor("vec"))); }

at::Tensor baddbmm(const Call& call) {
  return with_addend(call, at::bmm(call.tensor("batch1"), call.tensor("batch2")));
}

struct Function {
  at::Tensor (*compute)(const Call& call);
  bool (*takes)(const Call& call) = nullptr;  ///< none: any call
  bool makes_complex = false;                 ///< of real numbers
};

bool has_no_dtype(const Call& call) { return call["dtype"].isNone(); }
/// Whether numbers of the operand's dtype are made: in another that is asked for, or that `out=` has, ATen computes.
bool keeps_dtype(const Call& call) {
  return has_no_dtype(call) && (!call.written() || call.written()->scalar_type() == call.tensor("self").scalar_type());
}
bool is_no_number(const Call& call) { return keeps_dtype(call) && call.tensor("self").dim() > 0; }
bool is_any_complex(const Call& call) { return c10::isComplexType(common_dtype(call, "exponent")); }
bool has_correction(const Call& call) { return call.has("correction"); }
bool is_not_written(const Call& call) { return !call.written(); }
bool is_matrix(const Call& call) { return call.tensor("self").dim() == 2; }

/// Whether all these have one dtype: what the CPU refuses otherwise, it is left to.
bool have_one_dtype(const Call& call, std::initializer_list<const char*> names) {
  const at::ScalarType dtype = call.tensor(*names.begin()).scalar_type();
  return std::all_of(names.begin(), names.end(),
                     [&](const char* name) { return call.tensor(name).scalar_type() == dtype; });
}

bool are_ends(const Call& call) {
  return have_one_dtype(call, {"self", "end"}) &&
         (call["weight"].isScalar() || have_one_dtype(call, {"self", "weight"}));
}
bool are_both_complex(const Call& call) { return have_one_dtype(call, {"self", "mat2"}); }
bool are_products_added(const Call& call) { return have_one_dtype(call, {"self", "tensor1", "tensor2"}); }

/// Whether tensors have one dtype, and as many dimensions as a product of matrices takes, to which another is added
/// that broadcasts.
bool are_factors(const Call& call, const char* a, const char* b, int64_t rows, int64_t columns) {
  const at::Tensor first = call.tensor(a), second = call.tensor(b), self = call.tensor("self");
  if (!have_one_dtype(call, {"self", a, b}) || first.dim() != rows || second.dim() != columns) return false;
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes.pop_back();
  if (columns > 1) sizes.push_back(second.size(-1));
  return call.function() == "mv" || at::is_expandable_to(self.sizes(), sizes);
}

bool are_real(const Call& call, const char* a, const char* b) {
  const at::ScalarType dtype = call.tensor(a).scalar_type();
  return have_one_dtype(call, {a, b}) && (dtype == at::kFloat || dtype == at::kDouble);
}

bool are_rows(const Call& call, const char* other) {
  const at::Tensor a = call.tensor("self"), b = call.tensor(other);
  return have_one_dtype(call, {"self", other}) && a.dim() == 1 && a.sizes() == b.sizes();
}

/// By `Call::function`.
const std::map<std::string, Function>& functions() {
  static const std::map<std::string, Function> all{
      {"abs", {abs, is_not_written}},
      {"acos", {by_name}},
      {"acosh", {by_name}},
      {"add", {add}},
      {"addcdiv", {addcdiv, are_products_added}},
      {"addcmul", {addcmul, are_products_added}},
      {"addmm", {addmm, [](const Call& call) { return are_factors(call, "mat1", "mat2", 2, 2); }}},
      {"addmv", {addmv, [](const Call& call) { return are_factors(call, "mat", "vec", 2, 1); }}},
      {"all", {whether_all, is_not_written}},
      {"angle", {angle, is_not_written}},
      {"any", {whether_any, is_not_written}},
      {"asin", {by_name}},
      {"asinh", {by_name}},
      {"atan", {by_name}},
      {"atanh", {by_name}},
      {"baddbmm", {baddbmm, [](const Call& call) { return are_factors(call, "batch1", "batch2", 3, 3); }}},
      {"bmm", {bmm, are_both_complex}},
      {"complex", {complex, [](const Call& call) { return are_real(call, "real", "imag"); }, true}},
      {"conj_physical", {by_name}},
      {"cos", {by_name}},
      {"cosh", {by_name}},
      {"cumsum", {cumsum, is_no_number}},
      {"div", {div, [](const Call& call) { return !call.has("rounding_mode"); }}},
      {"dot", {dot, [](const Call& call) { return are_rows(call, "tensor"); }}},
      {"eq", {eq}},
      {"exp", {by_name}},
      {"expm1", {by_name}},
      {"isinf", {either<at::isinf>}},
      {"isnan", {either<at::isnan>}},
      {"lerp", {lerp, are_ends}},
      {"linalg_vector_norm", {vector_norm, has_no_dtype}},
      {"log", {by_name}},
      {"log10", {by_name}},
      {"log1p", {by_name}},
      {"log2", {by_name}},
      {"logical_and", {joined_truth<at::logical_and>, is_not_written}},
      {"logical_not", {logical_not, is_not_written}},
      {"logical_or", {joined_truth<at::logical_or>, is_not_written}},
      {"logical_xor", {joined_truth<at::logical_xor>, is_not_written}},
      {"mean", {mean, keeps_dtype}},
      {"mm", {mm, are_both_complex}},
      {"mul", {mul}},
      {"mv", {mv, [](const Call& call) { return are_factors(call, "self", "vec", 2, 1); }}},
      {"ne", {ne}},
      {"neg", {neg}},
      {"polar", {polar, [](const Call& call) { return are_real(call, "abs", "angle"); }, true}},
      {"pow", {pow, is_any_complex, true}},
      {"prod", {prod, keeps_dtype}},
      {"reciprocal", {reciprocal}},
      {"rsqrt", {by_name}},
      {"rsub", {rsub}},
      {"sgn", {by_name}},
      {"sigmoid", {by_name}},
      {"sin", {by_name}},
      {"sinh", {by_name}},
      {"sqrt", {by_name}},
      {"std", {deviation, has_correction}},
      {"sub", {sub}},
      {"sum", {sum, keeps_dtype}},
      {"tan", {by_name}},
      {"tanh", {by_name}},
      {"trace", {trace, is_matrix}},
      {"var", {var, has_correction}},
      {"vdot", {vdot, [](const Call& call) { return are_rows(call, "other"); }}},
  };
  return all;
}

std::string Call::function() const {
  const size_t start = op_.name.find("::") + 2;
  std::string base = op_.name.substr(start, op_.name.find('.') - start);
  if (base.back() == '_') base.pop_back();
  return base;
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
  if (op.aliased_argument.size() != 1 || op.name.rfind("aten::", 0) != 0) return false;
  const Call call(op, *stack);
  const auto found = functions().find(call.function());
  if (found == functions().end()) return false;
  const Function& function = found->second;
  if (call.written() && !call.written()->is_privateuseone()) return false;
  if (!call.is_complex(function.makes_complex) || (function.takes != nullptr && !function.takes(call))) return false;
  // Variants with `out=` are on none of autocast's lists; what they are made of would be.
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  at::Tensor result = function.compute(call);
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
  m.def("pairs_pow_(Tensor(a!) out, Tensor? self, Tensor? other, Scalar re, Scalar im) -> ()");
  m.def("pairs_eq_(Tensor(a!) out, Tensor? self, Tensor? other, Scalar re, Scalar im) -> ()");
  m.def("pairs_function_(Tensor(a!) out, Tensor self, str function) -> ()");
}

}  // namespace outboard::aten
