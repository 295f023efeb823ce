// SPDX-License-Identifier: Apache-2.0
#include "torch/python/bindings_eager.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cfenv>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/plans/plan_binaries.h"
#include "runtime/plans/plan_inputs.h"
#include "torch/bridge/generator.h"
#include "torch/bridge/hidden_costs.h"
#include "torch/bridge/sync_debug.h"
#include "torch/bridge/tensor.h"
#include "torch/eager/compiler.h"
#include "torch/eager/cpu_operators.h"
#include "torch/eager/eager_signature.h"
#include "torch/eager/eager_statistics.h"
#include "torch/eager/fallback.h"
#include "torch/eager/foreach.h"
#include "torch/eager/hit_costs.h"
#include "torch/eager/op_list.h"
#include "torch/eager/refused_calls.h"
#include "torch/eager/results.h"
#include "torch/python/binding_helpers.h"

namespace outboard::aten {
namespace {

/// The state of a thread that runs Python frames as they are. While a program's frames are being compiled by
/// `torch.compile`, Dynamo looks at every frame that begins, and would trace our compiler. Needs the GIL.
class UntracedFrames {
 public:
  UntracedFrames() : callback_(set(py::none())) {}
  ~UntracedFrames() {
    const py::error_scope error;  // what is on its way to the caller stays on its way
    set(callback_);
  }
  UntracedFrames(const UntracedFrames&) = delete;
  UntracedFrames& operator=(const UntracedFrames&) = delete;

 private:
  /// Sets what Dynamo calls for each frame of this thread; returns what it called before. (A built-in function: one of
  /// Python's would itself be traced.)
  static py::object set(const py::object& callback) {
    return py::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame")(callback);
  }

  py::object callback_;
};

/// The state of a thread without modes: the program's would see, and change, each operator that the compiler calls, and
/// that of `torch.set_default_device` would place its tensors.
class WithoutModes {
 public:
  WithoutModes()
      : functions_(at::impl::PythonTorchFunctionTLS::get_state()),
        operators_(c10::impl::TorchDispatchModeTLS::get_state()) {
    at::impl::PythonTorchFunctionTLS::set_state({});
    c10::impl::TorchDispatchModeTLS::set_state({});
  }
  ~WithoutModes() {
    c10::impl::TorchDispatchModeTLS::set_state(operators_);
    at::impl::PythonTorchFunctionTLS::set_state(functions_);
  }
  WithoutModes(const WithoutModes&) = delete;
  WithoutModes& operator=(const WithoutModes&) = delete;

 private:
  at::impl::PythonTorchFunctionTLS functions_;
  c10::impl::TorchDispatchModeTLS operators_;
};

/// Denormal numbers as they are, whatever `torch.set_flush_denormal` says: constants of programs are computed here.
class ExactNumbers {
 public:
  ExactNumbers() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~ExactNumbers() { std::fesetenv(&before_); }
  ExactNumbers(const ExactNumbers&) = delete;
  ExactNumbers& operator=(const ExactNumbers&) = delete;

 private:
  std::fenv_t before_{};
};

/// The thread's state as it is outside any kernel, so that Python can trace and run operators freely.
class OutsideKernels {
 public:
  OutsideKernels()
      : keys_(c10::DispatchKeySet(c10::default_included_set), c10::DispatchKeySet(c10::default_excluded_set)),
        inference_(false) {}

 private:
  UntracedFrames frames_;
  WithoutModes modes_;
  ExactNumbers numbers_;
  c10::impl::ForceDispatchKeyGuard keys_;
  c10::InferenceMode inference_;
  at::AutoGradMode no_grad_{false};
  WaitsUnnoticed own_waits_;
};

/// Rethrows a Python exception in the form that crosses PyTorch's C++ (other threads included).
[[noreturn]] void rethrow_python(py::error_already_set& error) {
  error.restore();
  python_error persisted;
  persisted.persist();
  throw persisted;
}

bool python_ends() {
#if PY_VERSION_HEX < 0x030D0000
  return _Py_IsFinalizing() != 0;
#else
  return Py_IsFinalizing() != 0;
#endif
}

/// An argument as Python code would write it.
py::object to_python(const c10::Argument& declared, const c10::IValue& value) {
  c10::TypePtr type = declared.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (value.isNone()) return py::none();
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType:
      return py::cast(value.toScalarType());
    case c10::TypeKind::LayoutType:
      return py::cast(value.toLayout());
    case c10::TypeKind::MemoryFormatType:
      return py::cast(value.toMemoryFormat());
    default:
      return torch::jit::toPyObject(value);
  }
}

/// A call among those of all operators: what plans are kept under, but for the device.
std::string whole_signature(const PlanKey& key) { return key.op.name + std::string(key.signature); }

/// A call as the compiler in Python sees it.
struct PythonCall {
  PythonCall(const PlanKey& key, c10::ArrayRef<c10::IValue> arguments)
      : op(key.op.name),
        device(key.device),
        bake(key.bake),
        signature(whole_signature(key)),
        leaves(signed_leaves(key.op, arguments, key.bake)) {
    py::list positional;
    const auto& declared = key.op.handle.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const py::object value = to_python(declared[i], arguments[i]);
      if (declared[i].kwarg_only()) {
        kwargs[py::str(declared[i].name())] = value;
      } else {
        positional.append(value);
      }
    }
    args = py::tuple(positional);
  }

  std::string op;
  int device;
  bool bake;
  py::bytes signature;
  std::vector<SignedLeaf> leaves;
  py::tuple args;
  py::dict kwargs;
};

/// A call that is not made, of an operator ("aten::add.Tensor") with these arguments.
PythonCall signed_call(const std::string& op, const py::tuple& args, const py::dict& kwargs, bool bake) {
  const size_t dot = op.find('.');
  const Operator& found =
      find_operator(op.substr(0, dot).c_str(), dot == std::string::npos ? "" : op.substr(dot + 1).c_str());
  torch::jit::Stack stack = torch::jit::createStackForSchema(found.handle.schema(), torch::jit::tuple_slice(args),
                                                             py::reinterpret_borrow<py::kwargs>(kwargs), std::nullopt);
  Arguments arguments(stack.data(), stack.size(), Arguments::kOwned);
  const c10::DeviceIndex device = unify_devices(found, arguments);
  return {{found, device, {}, bake}, arguments};
}

class PythonCompiler : public Compiler {
 public:
  PythonCompiler(py::object plan_for, py::object keep_plan, py::object keep_bake, py::object writes, py::object attends)
      : plan_for_(std::move(plan_for)),
        keep_plan_(std::move(keep_plan)),
        keep_bake_(std::move(keep_bake)),
        writes_(std::move(writes)),
        attends_(std::move(attends)) {}

  bool has_ended() const override { return python_ends(); }

  PlanAnswer plan_for(const PlanKey& key, c10::ArrayRef<c10::IValue> arguments, const PlanSources& sources) override {
    return in_python([&]() -> PlanAnswer {
      const py::tuple answer = plan_for_(PythonCall(key, arguments), sources.cache, sources.compiler, sources.library);
      return {verdict(answer[0].cast<std::string>()), answer[1].cast<std::vector<std::string>>(),
              answer[2].cast<bool>()};
    });
  }

  void keep_plan(const PlanKey& key, const std::string& plan) override {
    in_python([&] { keep_plan_(key.device, py::bytes(whole_signature(key)), key.bake, py::bytes(plan)); });
  }

  void keep_bake(const PlanKey& key) override {
    in_python([&] { keep_bake_(key.device, py::bytes(whole_signature(key))); });
  }

  bool writes(const std::string& dialect) override {
    return in_python([&] { return writes_(dialect).cast<bool>(); });
  }

  std::optional<bool> attends_by_library(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                         bool causal, std::optional<double> scale, bool plain) override {
    return in_python([&] { return attends_(query, key, value, causal, scale, plain).cast<std::optional<bool>>(); });
  }

 private:
  /// Calls a function of the compiler's, in the state that a thread has outside of any kernel.
  template <typename Function>
  static auto in_python(Function&& function) -> decltype(function()) {
    py::gil_scoped_acquire gil;
    const OutsideKernels outside;
    try {
      return function();
    } catch (py::error_already_set& error) {
      rethrow_python(error);
    }
  }

  static PlanAnswer::Verdict verdict(const std::string& text) {
    if (text == "plan") return PlanAnswer::kPlan;
    if (text == "bake") return PlanAnswer::kBake;
    if (text == "cpu") return PlanAnswer::kCpu;
    if (text == "refused") return PlanAnswer::kRefused;
    TORCH_CHECK(text == "nothing", "the compiler's verdict is '", text,
                "', not 'plan', 'bake', 'cpu', 'refused' or 'nothing'");
    return PlanAnswer::kNothing;
  }

  py::object plan_for_, keep_plan_, keep_bake_, writes_, attends_;
};

/// A plan of the compiler's own (torch.compile), ready to run on one device.
class PythonPlan {
 public:
  /// `binaries` are those of the plan's programs, in order, made by the same device; or none.
  PythonPlan(const std::string& data, int device, const std::vector<std::string>& binaries)
      : executable_(translate_errors([&] { return prepare(data, opened_runtime().device(device), binaries); })),
        ending_(inputs_ending_at(executable_->plan())),
        device_(static_cast<c10::DeviceIndex>(device)) {}

  /// The binaries of the plan's programs, in order; empty where the driver gives none.
  py::list binaries() const {
    py::list made;
    for (const std::string& binary : take_binaries(executable_->plan(), executable_->device())) {
      made.append(py::bytes(binary));
    }
    return made;
  }

  /// Takes tensors of the device, numbers (also as 0-dim CPU tensors) and None, and empties their list: memory of a
  /// tensor that nobody else holds is used again after the last step that needs it.
  py::list run(py::list values) {
    if (executable_->device().was_reset()) make_again();
    const std::vector<uint8_t>& kinds = executable_->plan().inputs;
    TORCH_CHECK(values.size() == kinds.size(), "the plan takes ", kinds.size(), " inputs, got ", values.size());
    std::vector<at::Tensor> held(kinds.size());
    std::vector<Input> inputs(kinds.size());
    std::vector<const at::Tensor*> tensors(kinds.size(), nullptr);
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (kinds[i] == Plan::kNoneInput) continue;
      if (kinds[i] != Plan::kTensorInput) {
        inputs[i].scalar = number(values[i], kinds[i]);
        continue;
      }
      held[i] = py::cast<at::Tensor>(values[i]);
      TORCH_CHECK(held[i].device() == c10::Device(c10::DeviceType::PrivateUse1, device_),
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  c10::Device(c10::DeviceType::PrivateUse1, device_), " and ", held[i].device(), "!");
      tensors[i] = &held[i];
      inputs[i].tensor = binding_of(held[i]);
    }
    values.attr("clear")();
    return results(execute(inputs, held), tensors);
  }

 private:
  static std::shared_ptr<const Executable> prepare(const std::string& data, Device& device,
                                                   const std::vector<std::string>& binaries) {
    const std::shared_ptr<const Plan> plan = Plan::parse(data.data(), data.size());
    offer_binaries(*plan, device, binaries);
    return std::make_shared<Executable>(plan, device);
  }

  /// For what stands for the device now.
  void make_again() {
    executable_ = translate_errors([&] {
      Device& fresh = opened_runtime().device(device_);
      return std::make_shared<Executable>(executable_->shared_plan(), fresh);
    });
  }

  static Scalar number(py::handle value, uint8_t kind) {
    Scalar scalar;
    const py::object plain =
        THPVariable_Check(value.ptr()) ? value.attr("item")() : py::reinterpret_borrow<py::object>(value);
    if (kind == Plan::kIntInput) {
      scalar.i = plain.cast<int64_t>();
    } else {
      scalar.d = plain.cast<double>();
    }
    return scalar;
  }

  std::vector<Result> execute(const std::vector<Input>& inputs, std::vector<at::Tensor>& held) const {
    const std::shared_ptr<const Executable> executable = executable_;  // another thread may make it again
    py::gil_scoped_release no_gil;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::vector<Scalar> symbols;
    TORCH_CHECK(executable->bind(inputs.data(), symbols), "the plan was made for other shapes than it got");
    const auto seeds = [this](int64_t* out, int64_t count) { next_seeds(std::nullopt, device_, out, count); };
    const auto later = [this] { return seeds_of(std::nullopt, device_); };
    const auto release = [&](size_t step) {
      for (const uint32_t input : ending_[step]) held[input] = at::Tensor();
    };
    ExecutionContext context{current_stream(device_), seeds, later, release};
    std::vector<Result> results;
    translate_errors([&] { executable->run(inputs.data(), symbols, context, results); });
    return results;
  }

  static py::list results(const std::vector<Result>& made, const std::vector<const at::Tensor*>& tensors) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::unordered_map<Allocation*, at::Tensor> first;
    py::list list;
    for (const Result& result : made) list.append(torch::jit::toPyObject(value_of(result, tensors, first)));
    return list;
  }

  /// A result as it is returned. Those in one allocation share a storage, by which PyTorch tells that they do, and
  /// count writes together.
  static c10::IValue value_of(const Result& result, const std::vector<const at::Tensor*>& tensors,
                              std::unordered_map<Allocation*, at::Tensor>& first) {
    if (result.kind != Output::kTensor || !result.new_allocation) return to_ivalue(result, tensors);
    const auto found = first.find(result.allocation);
    if (found == first.end()) {
      c10::IValue value = to_ivalue(result, tensors);
      first.emplace(result.allocation, value.toTensor());
      return value;
    }
    result.allocation->release();  // the storage holds a reference of its own
    at::Tensor view = view_of(found->second.storage(), static_cast<at::ScalarType>(result.dtype), result.sizes,
                              result.strides, result.storage_offset);
    share_versions(view, found->second);
    return view;
  }

  std::shared_ptr<const Executable> executable_;
  std::vector<std::vector<uint32_t>> ending_;  // by step: inputs that are not needed any more
  c10::DeviceIndex device_;
};

/// What a plan takes and returns, in words, whether it calls anything that is not in it, and how many programs it has.
/// Throws RuntimeError if it is no plan.
py::tuple plan_interface(const py::bytes& data) {
  const std::string bytes = data;
  const auto plan = translate_errors([&] { return Plan::parse(bytes.data(), bytes.size()); });
  static constexpr const char* kInputs[] = {"tensor", "int", "float", "none"};
  static constexpr const char* kOutputs[] = {"tensor", "tensor", "int", "none", "float"};
  py::list inputs, outputs;
  for (const uint8_t kind : plan->inputs) inputs.append(kInputs[kind]);
  for (const Output& output : plan->outputs) outputs.append(kOutputs[output.kind]);
  const bool calls = std::any_of(plan->steps.begin(), plan->steps.end(), [](const Step& step) {
    return step.kind == Step::kCall || step.kind == Step::kSeeds;
  });
  return py::make_tuple(inputs, outputs, calls, plan->programs.size());
}

/// A FallbackCheck in Python. The function is leaked: operators may run until the process ends.
class PythonCheck {
 public:
  explicit PythonCheck(py::object check) : check_(check.release().ptr()) {}

  std::string operator()(const std::string& name, FallbackCause cause) const {
    if (python_ends()) return "";
    py::gil_scoped_acquire gil;
    try {
      const py::object refusal = py::handle(check_)(name, word_for(cause));
      return refusal.is_none() ? "" : refusal.cast<std::string>();
    } catch (py::error_already_set& error) {
      rethrow_python(error);
    }
  }

 private:
  PyObject* check_;
};

/// A function of Python's as an observer of costs, which may be let go of in any thread.
CostObserver python_observer(py::object function) {
  const std::shared_ptr<py::object> kept(new py::object(std::move(function)), [](py::object* object) {
    if (python_ends()) return;
    py::gil_scoped_acquire gil;
    delete object;
  });
  return [kept](HiddenCost kind, const std::string& what, const std::string& cause) {
    if (python_ends()) return;
    py::gil_scoped_acquire gil;
    try {
      (*kept)(word_for(kind), what, cause);
    } catch (py::error_already_set& error) {
      rethrow_python(error);
    }
  };
}

FallbackPolicy policy(const std::string& text) {
  if (text == "allow") return FallbackPolicy::kAllow;
  if (text == "warn") return FallbackPolicy::kWarn;
  if (text == "error") return FallbackPolicy::kError;
  throw py::value_error("OUTBOARD_FALLBACK is '" + text + "': use allow, warn or error");
}

}  // namespace

void bind_eager(py::module_& m) {
  register_cpu_operators();
  register_refused_calls();
  register_operators();
  chains::register_kernels();

  static constexpr const char* kLeaves[] = {"tensor", "int", "float"};
  py::class_<SignedLeaf>(m, "SignedLeaf")
      .def_readonly("argument", &SignedLeaf::argument)
      .def_readonly("item", &SignedLeaf::item)
      .def_property_readonly("kind", [](const SignedLeaf& leaf) { return kLeaves[leaf.kind]; })
      .def_readonly("sizes", &SignedLeaf::sizes)
      .def_readonly("strides", &SignedLeaf::strides)
      .def_readonly("order", &SignedLeaf::order);
  py::class_<PythonCall>(m, "SignedCall")
      .def_readonly("op", &PythonCall::op)
      .def_readonly("device", &PythonCall::device)
      .def_readonly("bake", &PythonCall::bake)
      .def_readonly("signature", &PythonCall::signature)
      .def_readonly("leaves", &PythonCall::leaves)
      .def_readonly("args", &PythonCall::args)
      .def_readonly("kwargs", &PythonCall::kwargs);
  m.def("signed_call", &signed_call, py::arg("op"), py::arg("args"), py::arg("kwargs"), py::arg("bake"));
  m.def("share_versions", &share_versions, py::arg("view"), py::arg("base"));
  m.def("set_compiler",
        [](py::object plan_for, py::object keep_plan, py::object keep_bake, py::object writes, py::object attends) {
          set_compiler(std::make_unique<PythonCompiler>(std::move(plan_for), std::move(keep_plan), std::move(keep_bake),
                                                        std::move(writes), std::move(attends)));
        });
  bindings::define(m, "fallbacks", "How often each operator ran on the CPU.", &fallback_counts);
  bindings::define(m, "reset_fallbacks", "Forgets these counts.", &reset_fallback_counts);
  m.def("set_fallback_policy", [](const std::string& text) { set_fallback_policy(policy(text)); });
  m.def(
      "add_fallback_check", [](py::object check) { add_fallback_check(PythonCheck(std::move(check))); },
      "Has one more function asked before each fallback, with the operator's name and why it runs on the CPU: "
      "'unsupported', "
      "'compiler' or 'copy'. It returns None, or why the fallback must not be.");
  m.def(
      "observe_costs",
      [](py::object function) { observe_costs(function.is_none() ? CostObserver() : python_observer(function)); },
      "Has one function told, or with None no more, of what costs time without a word of it in the program: its kind, "
      "what it is of, and of a fallback its cause.");
  bindings::define(m, "eager_stats", "Counts of calls by whether their plan was known, and of plans.", [] {
    const EagerStatistics statistics = eager_statistics();
    return py::dict(py::arg("hits") = statistics.hits, py::arg("misses") = statistics.misses,
                    py::arg("plans") = statistics.plans);
  });
  bindings::define(m, "reset_eager_stats", "Forgets these counts.", &reset_eager_statistics);
  bindings::define_for_all(m, "foreach_begin", "Opens a scope in which `_foreach_*` operators are written down.",
                           &chains::begin);
  bindings::define_for_all(m, "foreach_end", "Closes the scope, and runs what was written down.", &chains::end);
  m.def(
      "hit_costs",
      [](const at::Tensor& left, const at::Tensor& right, int64_t bursts) {
        const HitCosts costs = hit_costs(left, right, bursts);
        return py::dict(py::arg("device") = costs.device, py::arg("signature") = costs.signature,
                        py::arg("lookup") = costs.lookup, py::arg("symbols") = costs.symbols,
                        py::arg("plan") = costs.plan, py::arg("kernel") = costs.kernel, py::arg("call") = costs.call);
      },
      py::arg("left"), py::arg("right"), py::arg("bursts") = 200);
  m.def("plan_interface", &plan_interface);
  py::class_<PythonPlan, std::shared_ptr<PythonPlan>>(m, "Plan")
      .def(py::init([](const py::bytes& data, int device, const std::vector<std::string>& binaries) {
             return std::make_shared<PythonPlan>(std::string(data), device, binaries);
           }),
           py::arg("data"), py::arg("device_index"), py::arg("binaries") = std::vector<std::string>())
      .def("run",
           torch::wrap_pybind_function([](PythonPlan& plan, const py::list& values) { return plan.run(values); }))
      .def("binaries", &PythonPlan::binaries);
}

}  // namespace outboard::aten
