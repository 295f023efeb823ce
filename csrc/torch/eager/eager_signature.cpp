// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/eager_signature.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/overflows.h>

#include <algorithm>
#include <cmath>

#include "torch/bridge/device_type.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/tensor.h"
#include "torch/eager/map_tensors.h"

namespace outboard::aten {
namespace {

/// A 0-dim CPU tensor made from a Python number: it takes part in type promotion as a number does.
bool is_wrapped_number(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

/// Whether `Scalar::to` of an element type refuses a value.
template <typename Value>
bool overflows(at::ScalarType dtype, Value value) {
  switch (dtype) {
    case at::kByte:
      return c10::overflows<uint8_t, Value>(value);
    case at::kChar:
      return c10::overflows<int8_t, Value>(value);
    case at::kShort:
      return c10::overflows<int16_t, Value>(value);
    case at::kInt:
      return c10::overflows<int32_t, Value>(value);
    case at::kLong:
      return c10::overflows<int64_t, Value>(value);
    case at::kHalf:
      return c10::overflows<c10::Half, Value>(value);
    case at::kBFloat16:
      return c10::overflows<c10::BFloat16, Value>(value);
    case at::kFloat:
      return c10::overflows<float, Value>(value);
    default:
      return false;  // every number fits, or the dtype does not compute
  }
}

/// State of PyTorch's beside the arguments that decides what a call computes: 0 if all is as a process begins with. The
/// compiler compiles under it; docs/state.md has what else there is, and why it is not here.
uint16_t unusual_state() {
  const at::ScalarType dtype = c10::get_default_dtype_as_scalartype();
  const auto deterministic = static_cast<uint16_t>(at::globalContext().deterministicAlgorithms());
  return static_cast<uint16_t>(deterministic << 8 | (dtype == at::kFloat ? 0 : 1 + static_cast<uint8_t>(dtype)));
}

/// Dimensions of a tensor from the outermost to the innermost in memory.
c10::SmallVector<uint8_t, 8> memory_order(const at::Tensor& tensor) {
  c10::SmallVector<uint8_t, 8> order(tensor.dim());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint8_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](uint8_t a, uint8_t b) {
    return tensor.stride(a) != tensor.stride(b) ? tensor.stride(a) > tensor.stride(b) : tensor.size(a) > tensor.size(b);
  });
  return order;
}

/// Whether a size or stride is signed by its value, which code may then take for granted.
bool is_signed_by_value(int64_t size) { return size == 0 || size == 1; }

/// Whether a float is: code may compare one with others, and take it to the sign of a zero, as if it were real.
bool is_signed_by_value(double value) { return !std::isfinite(value) || (value == 0 && std::signbit(value)); }

class Writer {
 public:
  Writer(const Operator& op, bool bake, CallSignature& out, std::vector<SignedLeaf>* leaves = nullptr)
      : op_(op), bake_(bake), out_(out), leaves_(leaves) {}

  /// `as_vectors`: whether the call may be signed as one on vectors.
  bool write(c10::ArrayRef<c10::IValue> arguments, bool as_vectors) {
    if (as_vectors && op_.coalesces) coalesce(arguments);
    arguments_ = arguments;
    tag(bake_ ? 'B' : 'R');
    for (argument_ = 0; argument_ < arguments.size(); ++argument_) {
      if (!argument(op_.roles[argument_], arguments[argument_])) return false;
    }
    if (const uint16_t state = unusual_state(); state != 0) tag('X'), raw(state);
    out_.bytes.complete();
    return true;
  }

 private:
  void tag(char value) { out_.bytes.push(value); }

  template <typename T>
  void raw(const T& value) {
    out_.bytes.push_raw(value);
  }

  bool argument(ArgumentRole role, const c10::IValue& value) {
    switch (role) {
      case ArgumentRole::kTensor:
        return value.isNone() ? none() : tensor(value.toTensor());
      case ArgumentRole::kTensorList:
        return value.isNone() ? none() : tensors(value.toListRef());
      case ArgumentRole::kScalar:
        return scalar(value);
      case ArgumentRole::kScalarList:
        return value.isNone() ? none() : scalars(value.toListRef());
      case ArgumentRole::kNumber:
        return value.isNone() ? none() : run_time_number(value);
      case ArgumentRole::kNumberList:
        return value.isNone() ? none() : run_time_numbers(value.toListRef());
      case ArgumentRole::kGenerator:
        if (!value.isNone()) out_.generator = value.toGenerator();
        return true;
      case ArgumentRole::kBaked:
        return baked(value);
    }
    return false;
  }

  bool none() {
    tag('n');
    return true;
  }

  bool tensors(c10::ArrayRef<c10::IValue> list) {
    return each(list, [&](const c10::IValue& item) { return item.isNone() ? none() : tensor(item.toTensor()); });
  }

  /// Signs a list: its length, and each item by a function that says whether it could.
  template <typename Sign>
  bool each(c10::ArrayRef<c10::IValue> list, Sign&& sign) {
    tag('l');
    raw(static_cast<uint32_t>(list.size()));
    for (item_ = 0; item_ < static_cast<int64_t>(list.size()); ++item_) {
      if (!sign(list[static_cast<size_t>(item_)])) return false;
    }
    item_ = -1;
    return true;
  }

  /// Signs the call as one on vectors if its tensors, those without dimensions aside, all lie alike, without gaps, and
  /// none in a layout of the driver's, which tensors of these sizes may keep.
  void coalesce(c10::ArrayRef<c10::IValue> arguments) {
    const at::Tensor* pattern = nullptr;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (op_.roles[i] != ArgumentRole::kTensor || arguments[i].isNone()) continue;
      const at::Tensor& tensor = arguments[i].toTensor();
      if (!tensor.defined() || tensor.dim() == 0) continue;
      if (tensor.dim() == 1) return;  // all are vectors already, or they do not lie alike
      if (tensor.layout() != c10::kStrided || !tensor.is_non_overlapping_and_dense()) return;
      if (pattern == nullptr) pattern = &tensor;
      if (tensor.sizes() != pattern->sizes() || tensor.strides() != pattern->strides()) return;
      if (Arrangement::was_any() && is_arranged(tensor)) return;
    }
    if (pattern == nullptr || pattern->numel() == 0) return;
    if (op_.facts.contiguous && !pattern->is_contiguous()) return;
    out_.pattern = pattern;
    out_.count = pattern->numel();
  }

  /// Of a tensor that is all of its storage: a part is found by strides.
  static bool is_arranged(const at::Tensor& tensor) {
    if (!tensor.is_privateuseone()) return false;
    const Allocation* const allocation = binding_of(tensor).allocation;
    return allocation != nullptr && allocation->size() == tensor.nbytes() && allocation->state() == State::kArranged;
  }

  bool tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return none();
    if (!tensor.is_privateuseone()) return is_wrapped_number(tensor) && wrapped_number(tensor);
    if (tensor.layout() != c10::kStrided || tensor.is_quantized()) return false;
    Input& input = out_.inputs.emplace_back();
    input.tensor = binding_of(tensor);
    if (out_.pattern != nullptr && tensor.dim() > 0) {
      vector(tensor, input.tensor);
    } else {
      geometry(tensor);
    }
    out_.tensors.push_back(&tensor);
    if (leaves_ != nullptr) describe(tensor);
    return true;
  }

  SignedLeaf& leaf(SignedLeaf::Kind kind) {
    const std::string& name = op_.handle.schema().arguments()[argument_].name();
    return leaves_->emplace_back(SignedLeaf{name, item_, kind});
  }

  /// Says of a tensor what `geometry` writes.
  void describe(const at::Tensor& tensor) {
    SignedLeaf& leaf = this->leaf(SignedLeaf::kTensor);
    const auto known = [](int64_t size) { return is_signed_by_value(size) ? std::optional(size) : std::nullopt; };
    for (const int64_t size : tensor.sizes()) leaf.sizes.push_back(known(size));
    if (tensor.is_contiguous()) {
      for (int64_t dim = 0; dim < tensor.dim(); ++dim) leaf.order.push_back(static_cast<uint8_t>(dim));
    } else if (tensor.is_non_overlapping_and_dense()) {
      const auto order = memory_order(tensor);
      leaf.order.assign(order.begin(), order.end());
    } else {
      for (const int64_t stride : tensor.strides()) leaf.strides.push_back(known(stride));
    }
  }

  /// What `geometry` writes for a vector of as many elements, and its binding.
  void vector(const at::Tensor& tensor, TensorBinding& binding) {
    static constexpr int64_t kStep = 1;
    binding.dim = 1;
    binding.sizes = &out_.count;
    binding.strides = &kStep;
    sizes(tensor.scalar_type(), out_.count);
    tag('c');
  }

  static char size(int64_t size) { return is_signed_by_value(size) ? static_cast<char>('0' + size) : 's'; }

  void sizes(at::ScalarType dtype, at::IntArrayRef sizes) {
    char* place = out_.bytes.extend(3 + sizes.size());
    *place++ = 'T';
    *place++ = static_cast<char>(dtype);
    *place++ = static_cast<char>(sizes.size());
    for (const int64_t each : sizes) *place++ = size(each);
  }

  /// Dtype, and per dimension what specialises code: sizes 0 and 1, and the layout class. The order in which dimensions
  /// lie in memory decides how results lie.
  void geometry(const at::Tensor& tensor) {
    sizes(tensor.scalar_type(), tensor.sizes());
    if (tensor.is_contiguous()) return tag('c');
    if (tensor.is_non_overlapping_and_dense()) return permutation('p', tensor);
    permutation('g', tensor);
    for (const int64_t stride : tensor.strides()) tag(size(stride));
  }

  /// Dimensions from the outermost to the innermost in memory.
  void permutation(char layout, const at::Tensor& tensor) {
    tag(layout);
    for (const uint8_t dim : memory_order(tensor)) raw(dim);
  }

  bool wrapped_number(const at::Tensor& tensor) {
    tag('w');
    if (tensor.scalar_type() == at::kDouble) return number(*tensor.const_data_ptr<double>());
    if (tensor.scalar_type() == at::kLong) return number(*tensor.const_data_ptr<int64_t>());
    if (tensor.scalar_type() == at::kBool) return baked_bool(*tensor.const_data_ptr<bool>());
    return false;
  }

  bool scalar(const c10::IValue& value) {
    if (value.isNone()) return none();
    if (value.isInt()) return number(value.toInt());
    if (value.isDouble()) return number(value.toDouble());
    if (value.isBool()) return baked_bool(value.toBool());
    return false;  // complex
  }

  bool scalars(c10::ArrayRef<c10::IValue> list) {
    return each(list, [&](const c10::IValue& item) { return scalar(item); });
  }

  bool run_time_number(const c10::IValue& value) {
    if (value.isInt()) return write(value.toInt()), true;
    if (value.isDouble()) return write(value.toDouble()), true;
    return false;  // symbolic
  }

  bool run_time_numbers(c10::ArrayRef<c10::IValue> list) {
    return each(list, [&](const c10::IValue& item) { return run_time_number(item); });
  }

  /// Signs which element types a number does not fit: PyTorch raises there, where the operator converts the number.
  /// Halves are computed with as floats, and integers may become floats.
  template <typename Value>
  void fit(Value value) {
    constexpr Value kFitsAll = 127;
    if (value >= 0 && value <= kFitsAll) return;
    uint64_t refusing = 0;
    const auto look = [&](at::ScalarType dtype) {
      if (overflows(dtype, value)) refusing |= uint64_t{1} << static_cast<unsigned>(dtype);
    };
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (op_.roles[i] != ArgumentRole::kTensor || !arguments_[i].isTensor()) continue;
      const at::Tensor& tensor = arguments_[i].toTensor();
      if (!tensor.defined() || !tensor.is_privateuseone()) continue;
      look(tensor.scalar_type());
      if (at::isReducedFloatingType(tensor.scalar_type()) || at::isIntegralType(tensor.scalar_type(), true)) {
        look(at::kFloat);
      }
    }
    if (refusing == 0) return;
    out_.overflows = true;
    tag('o');
    raw(refusing);
  }

  template <typename Value>
  bool number(Value value) {
    fit(value);
    write(value);
    return true;
  }

  void write(int64_t value) {
    tag('i');
    if (bake_) return raw(value);
    scalar_input(SignedLeaf::kInt).scalar.i = value;
  }

  void write(double value) {
    const bool listed = item_ >= 0;  // lists have as many inputs whatever their numbers are, and no guards
    if (!bake_ && !listed && is_signed_by_value(value)) return tag('F'), raw(value);
    tag('f');
    if (bake_) return raw(value);
    scalar_input(SignedLeaf::kFloat).scalar.d = value;
  }

  Input& scalar_input(SignedLeaf::Kind kind) {
    out_.tensors.push_back(nullptr);
    if (leaves_ != nullptr) leaf(kind);
    return out_.inputs.emplace_back();
  }

  bool baked_bool(bool value) {
    tag(value ? 't' : 'u');
    return true;
  }

  bool text(const std::string& value) {
    tag('S');
    raw(static_cast<uint32_t>(value.size()));
    out_.bytes.push(value);
    return true;
  }

  bool baked(const c10::IValue& value) {
    if (value.isNone()) return none();
    if (value.isBool()) return baked_bool(value.toBool());
    if (value.isInt()) return tag('I'), raw(value.toInt()), true;
    if (value.isDouble()) return tag('D'), raw(value.toDouble()), true;
    if (value.isDevice()) return tag('v'), raw(static_cast<int8_t>(value.toDevice().type())), true;
    if (value.isString()) return text(value.toStringRef());
    if (!value.isList()) return false;
    const auto list = value.toListRef();
    tag('l');
    raw(static_cast<uint32_t>(list.size()));
    return std::all_of(list.begin(), list.end(), [&](const c10::IValue& item) { return baked(item); });
  }

  const Operator& op_;
  const bool bake_;
  CallSignature& out_;
  std::vector<SignedLeaf>* leaves_;
  c10::ArrayRef<c10::IValue> arguments_;
  size_t argument_ = 0;  // which is being signed
  int64_t item_ = -1;    // of which list
};

/// Finds the device of the call and collects what has to move there.
class DeviceUnifier {
 public:
  DeviceUnifier(const Operator& op, Arguments& arguments) : op_(op), arguments_(arguments) {}

  c10::DeviceIndex run() {
    const size_t count = op_.roles.size();
    for (size_t i = 0; i < count; ++i) visit(i, [&](const at::Tensor& tensor) { look(tensor); });
    if (device_ < 0) return from_device_argument();
    if (!has_cpu_) return device_;
    for (size_t i = 0; i < count; ++i) move(i);
    return device_;
  }

 private:
  template <typename Visitor>
  void visit(size_t i, Visitor&& visitor) {
    const at::IValue& value = arguments_[i];
    if (value.isNone()) return;
    if (op_.roles[i] == ArgumentRole::kTensor) return visitor(value.toTensor());
    if (op_.roles[i] != ArgumentRole::kTensorList) return;
    for (const at::IValue& item : value.toListRef()) {
      if (!item.isNone()) visitor(item.toTensor());
    }
  }

  void look(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (!tensor.is_privateuseone()) {
      has_cpu_ = has_cpu_ || !is_wrapped_number(tensor);
      return;
    }
    const c10::DeviceIndex index = tensor.get_device();
    if (device_ >= 0 && device_ != index) mismatch(c10::Device(kOurs, device_), tensor.device());
    device_ = index;
  }

  c10::DeviceIndex from_device_argument() {
    for (size_t i = 0; i < op_.roles.size(); ++i) {
      if (arguments_[i].isDevice() && arguments_[i].toDevice().has_index()) return arguments_[i].toDevice().index();
    }
    if (has_cpu_) refuse_generator();
    return static_cast<c10::DeviceIndex>(opened_runtime().current_device());
  }

  /// A generator of ours alone brings a call of the CPU here.
  void refuse_generator() const {
    for (size_t i = 0; i < op_.roles.size(); ++i) {
      const bool is_given = op_.roles[i] == ArgumentRole::kGenerator && !arguments_[i].isNone();
      TORCH_CHECK(!is_given, "Expected a 'cpu' device type for generator but found '",
                  arguments_[i].toGenerator().device().type(), "'");
    }
  }

  bool may_move(size_t i, const at::Tensor& tensor) const {
    if (!tensor.is_cpu() || op_.written[i]) return false;
    return tensor.dim() == 0 || (op_.facts.cpu_indices && op_.roles[i] == ArgumentRole::kTensorList);
  }

  static bool may_stay(const at::Tensor& tensor) {
    return !tensor.defined() || tensor.is_privateuseone() || is_wrapped_number(tensor);
  }

  at::Tensor moved(size_t i, const at::Tensor& tensor) {
    if (may_stay(tensor)) return tensor;
    if (!may_move(i, tensor)) mismatch(c10::Device(kOurs, device_), tensor.device());
    return tensor.to(c10::Device(kOurs, device_));
  }

  void move(size_t i) {
    const at::IValue& value = arguments_[i];
    if (value.isNone()) return;
    if (op_.roles[i] == ArgumentRole::kTensor) {
      if (!may_stay(value.toTensor())) arguments_.replace(i, moved(i, value.toTensor()));
      return;
    }
    if (op_.roles[i] != ArgumentRole::kTensorList) return;
    arguments_.replace(i, map_tensors(value, [&](const at::Tensor& tensor) { return moved(i, tensor); }));
  }

  [[noreturn]] void mismatch(const c10::Device& a, const c10::Device& b) const {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", a, " and ", b,
                "! (in ", op_.name, "; move the arguments to one device with .to(device))");
  }

  const Operator& op_;
  Arguments& arguments_;
  c10::DeviceIndex device_ = -1;
  bool has_cpu_ = false;
};

}  // namespace

c10::DeviceIndex unify_devices(const Operator& op, Arguments& arguments) { return DeviceUnifier(op, arguments).run(); }

void CallSignature::clear() {
  bytes.clear();
  inputs.clear();
  tensors.clear();
  generator.reset();
  pattern = nullptr;
  count = 0;
  overflows = false;
}

std::vector<at::IValue> signed_arguments(c10::ArrayRef<at::IValue> arguments, const CallSignature& signature) {
  std::vector<at::IValue> values(arguments.begin(), arguments.end());
  if (signature.pattern == nullptr) return values;
  const auto signed_as = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.dim() > 0 ? tensor.as_strided({signature.count}, {1}) : tensor;
  };
  for (at::IValue& value : values) value = map_tensors(value, signed_as);
  return values;
}

bool make_signature(const Operator& op, c10::ArrayRef<c10::IValue> arguments, bool bake, CallSignature& signature) {
  return Writer(op, bake, signature).write(arguments, /*as_vectors=*/true);
}

std::vector<SignedLeaf> signed_leaves(const Operator& op, c10::ArrayRef<c10::IValue> arguments, bool bake) {
  std::vector<SignedLeaf> leaves;
  CallSignature signature;
  const bool is_signed = Writer(op, bake, signature, &leaves).write(arguments, /*as_vectors=*/false);
  TORCH_CHECK_NOT_IMPLEMENTED(is_signed, op.name, " has an argument that no plan can take");
  return leaves;
}

}  // namespace outboard::aten
