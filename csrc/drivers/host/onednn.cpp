// SPDX-License-Identifier: Apache-2.0
#include "host/onednn.h"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <utility>

#include "common/operands.h"
#include "common/symbols.h"

namespace outboard::host {

/// The part of oneDNN's C interface that is used (oneapi/dnnl/dnnl.h of version 3). Handles are pointers, and statuses,
/// kinds and types numbers.
struct OneDnnApi {
  struct Version {
    int major, minor, patch;
    const char* hash;
    unsigned cpu_runtime, gpu_runtime;
  };
  struct Argument {
    int number;
    void* memory;
  };

  const Version* (*dnnl_version)();
  int (*dnnl_engine_create)(void** engine, int kind, size_t index);
  int (*dnnl_stream_create)(void** stream, void* engine, unsigned flags);
  int (*dnnl_stream_wait)(void* stream);
  int (*dnnl_memory_desc_create_with_strides)(void** description, int rank, const int64_t* dims, int type,
                                              const int64_t* strides);
  int (*dnnl_memory_desc_destroy)(void* description);
  int (*dnnl_memory_create)(void** memory, const void* description, void* engine, void* handle);
  int (*dnnl_memory_set_data_handle)(void* memory, void* handle);
  int (*dnnl_memory_destroy)(void* memory);
  int (*dnnl_matmul_primitive_desc_create)(void** description, void* engine, const void* source, const void* weights,
                                           const void* bias, const void* target, const void* attributes);
  int (*dnnl_convolution_forward_primitive_desc_create)(void** description, void* engine, int propagation,
                                                        int algorithm, const void* source, const void* weights,
                                                        const void* bias, const void* target, const int64_t* strides,
                                                        const int64_t* dilations, const int64_t* padding_before,
                                                        const int64_t* padding_behind, const void* attributes);
  int (*dnnl_primitive_attr_create)(void** attributes);
  int (*dnnl_primitive_attr_set_scratchpad_mode)(void* attributes, int mode);
  const void* (*dnnl_primitive_desc_query_md)(const void* description, int what, int index);
  int (*dnnl_primitive_create)(void** primitive, const void* description);
  int (*dnnl_primitive_desc_destroy)(void* description);
  int (*dnnl_primitive_execute)(const void* primitive, void* stream, int count, const Argument* arguments);
  int (*dnnl_primitive_destroy)(void* primitive);
  void (*omp_set_num_threads)(int count);  // these two of its OpenMP, if it has one
  int (*omp_get_max_threads)();

  void* engine = nullptr;
  void* stream = nullptr;
  void* attributes = nullptr;
};

namespace {

constexpr int kSuccess = 0;
constexpr int kCpu = 1;
constexpr unsigned kInOrder = 1;
constexpr int kForwardInference = 96;  // dnnl_forward_inference
constexpr int kDirect = 0x1;           // dnnl_convolution_direct
constexpr int kMostDimensions = 12;
constexpr int kSource = 1, kTarget = 17, kWeights = 33, kBias = 41, kScratch = 80;
/// oneDNN's own memory for intermediate results is for one thread: who makes a primitive must run it. Ours is not.
constexpr int kScratchOfUser = 1, kScratchDescription = 136;  // dnnl_scratchpad_mode_user, dnnl_query_scratchpad_md
/// Sets of sizes that a function remembers.
constexpr size_t kMostPrimitives = 64;

/// oneDNN's number for a dtype of PyTorch's; 0 for others.
int type_of(uint32_t dtype) {
  switch (dtype) {
    case 5:
      return 1;  // half
    case 15:
      return 2;  // bfloat16
    case 6:
      return 3;  // float
    default:
      return 0;
  }
}

/// Dimensions and strides of a tensor, as oneDNN is to see them.
struct View {
  int type = 0;
  std::vector<int64_t> dims, strides;
  const ob_operand* operand = nullptr;

  static View of(const ob_operand& tensor) {
    View view;
    view.type = tensor.kind == OB_OPERAND_TENSOR ? type_of(tensor.dtype) : 0;
    view.dims.assign(tensor.sizes, tensor.sizes + tensor.count);
    view.strides.assign(tensor.strides, tensor.strides + tensor.count);
    view.operand = &tensor;
    return view;
  }

  View transposed() const {
    View view = *this;
    std::swap(view.dims[view.dims.size() - 2], view.dims.back());
    std::swap(view.strides[view.strides.size() - 2], view.strides.back());
    return view;
  }

  /// With dimensions of 1 in front.
  View of_rank(size_t rank) const {
    View view = *this;
    const int64_t whole = view.dims.empty() ? 1 : view.dims.front() * view.strides.front();
    while (view.dims.size() < rank) {
      view.dims.insert(view.dims.begin(), 1);
      view.strides.insert(view.strides.begin(), whole);
    }
    return view;
  }

  bool is_usable() const { return type != 0 && !dims.empty() && dims.size() <= kMostDimensions; }
};

bool is_tensor(const ob_operand& operand) { return operand.kind == OB_OPERAND_TENSOR; }
bool is_left_out(const ob_operand& operand) { return operand.kind == OB_OPERAND_NONE; }

std::vector<int64_t> integers(const ob_operand& operand) { return {operand.sizes, operand.sizes + operand.count}; }

/// What a primitive computes.
struct Problem {
  View source, weights, target;
  std::optional<View> bias;
  // Of a convolution:
  bool convolution = false;
  std::vector<int64_t> stride, padding, dilation;

  bool is_usable() const {
    const int type = source.type;
    for (const View* view : {&source, &weights, &target}) {
      if (!view->is_usable() || view->type != type) return false;
    }
    return !bias || (bias->is_usable() && bias->type == type);
  }
};

/// mm, bmm: self, mat2, result.
std::optional<Problem> product(const std::vector<ob_operand>& operands) {
  if (operands.size() != 3 || !is_tensor(operands[0]) || !is_tensor(operands[1])) return std::nullopt;
  return Problem{View::of(operands[0]), View::of(operands[1]), View::of(operands[2]), {}, false, {}, {}, {}};
}

/// addmm: self, mat1, mat2, beta, alpha, result; for a vector that is added to each row.
std::optional<Problem> product_and_row(const std::vector<ob_operand>& operands) {
  if (operands.size() != 6 || !is_tensor(operands[0]) || operands[0].count != 1) return std::nullopt;
  for (size_t i : {3, 4}) {
    const bool one = operands[i].kind == OB_OPERAND_NUMBER ? operands[i].number == 1 : operands[i].integer == 1;
    if (!one) return std::nullopt;
  }
  return Problem{View::of(operands[1]),
                 View::of(operands[2]),
                 View::of(operands[5]),
                 View::of(operands[0]).of_rank(2),
                 false,
                 {},
                 {},
                 {}};
}

/// linear: input, weight, bias, result.
std::optional<Problem> linear(const std::vector<ob_operand>& operands) {
  if (operands.size() != 4 || !is_tensor(operands[0]) || operands[0].count < 2 || operands[1].count != 2) {
    return std::nullopt;
  }
  const size_t rank = operands[0].count;
  Problem problem{View::of(operands[0]),
                  View::of(operands[1]).transposed().of_rank(rank),
                  View::of(operands[3]),
                  {},
                  false,
                  {},
                  {},
                  {}};
  if (is_tensor(operands[2])) problem.bias = View::of(operands[2]).of_rank(rank);
  return problem;
}

/// convolution: input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, result.
std::optional<Problem> convolution(const std::vector<ob_operand>& operands) {
  if (operands.size() != 10 || operands[6].integer != 0 || operands[1].count < 3) return std::nullopt;
  if (operands[0].count != operands[1].count) return std::nullopt;
  const size_t rank = operands[1].count - 2;
  for (size_t i : {3, 4, 5}) {
    if (operands[i].kind != OB_OPERAND_INTEGERS || operands[i].count != rank) return std::nullopt;
  }
  Problem problem{View::of(operands[0]), View::of(operands[1]), View::of(operands[9]), {}, true,
                  integers(operands[3]), integers(operands[4]), integers(operands[5])};
  for (int64_t& dilation : problem.dilation) --dilation;  // oneDNN counts what is left out between two taps
  const int64_t groups = operands[8].integer;
  if (groups > 1) {  // its weights then have a dimension for groups in front
    View& weights = problem.weights;
    weights.dims[0] /= groups;
    weights.dims.insert(weights.dims.begin(), groups);
    weights.strides.insert(weights.strides.begin(), weights.strides[0] * weights.dims[1]);
  }
  if (!is_left_out(operands[2])) problem.bias = View::of(operands[2]);
  return problem;
}

std::optional<Problem> problem_of(const std::string& name, const std::vector<ob_operand>& operands) {
  std::optional<Problem> problem;
  if (name == "aten::mm" || name == "aten::bmm") problem = product(operands);
  if (name == "aten::addmm") problem = product_and_row(operands);
  if (name == "aten::linear") problem = linear(operands);
  if (name == "aten::convolution") problem = convolution(operands);
  return problem && problem->is_usable() ? problem : std::nullopt;
}

}  // namespace

/// oneDNN's objects for one set of sizes.
struct OneDnn::Function::Primitive {
  explicit Primitive(const OneDnnApi& api_) : api(api_) {}
  Primitive(const Primitive&) = delete;
  Primitive& operator=(const Primitive&) = delete;
  ~Primitive() {
    for (const Part& part : parts) {
      if (part.memory != nullptr) api.dnnl_memory_destroy(part.memory);
      if (part.description != nullptr) api.dnnl_memory_desc_destroy(part.description);
    }
    if (scratch != nullptr) api.dnnl_memory_destroy(scratch);
    if (primitive != nullptr) api.dnnl_primitive_destroy(primitive);
  }

  struct Part {
    int number;
    size_t operand;  // of the function's
    void* description = nullptr;
    void* memory = nullptr;
  };

  bool add(int number, const View& view, const std::vector<ob_operand>& operands) {
    Part& part = parts.emplace_back(Part{number, static_cast<size_t>(view.operand - operands.data())});
    const int rank = static_cast<int>(view.dims.size());
    return api.dnnl_memory_desc_create_with_strides(&part.description, rank, view.dims.data(), view.type,
                                                    view.strides.data()) == kSuccess &&
           api.dnnl_memory_create(&part.memory, part.description, api.engine, nullptr) == kSuccess;
  }

  const void* description(int number) const {
    for (const Part& part : parts) {
      if (part.number == number) return part.description;
    }
    return nullptr;
  }

  bool make(const Problem& problem, const std::vector<ob_operand>& operands) {
    parts.reserve(4);
    if (!add(kSource, problem.source, operands) || !add(kWeights, problem.weights, operands)) return false;
    if (!add(kTarget, problem.target, operands)) return false;
    if (problem.bias && !add(kBias, *problem.bias, operands)) return false;
    void* how = nullptr;
    const void *source = description(kSource), *weights = description(kWeights), *bias = description(kBias),
               *target = description(kTarget);
    const int status =
        problem.convolution
            ? api.dnnl_convolution_forward_primitive_desc_create(
                  &how, api.engine, kForwardInference, kDirect, source, weights, bias, target, problem.stride.data(),
                  problem.dilation.data(), problem.padding.data(), problem.padding.data(), api.attributes)
            : api.dnnl_matmul_primitive_desc_create(&how, api.engine, source, weights, bias, target, api.attributes);
    if (status != kSuccess) return false;
    const bool made = api.dnnl_primitive_create(&primitive, how) == kSuccess && add_scratch(how);
    api.dnnl_primitive_desc_destroy(how);
    return made;
  }

  bool add_scratch(const void* how) {
    void* const kAllocate = reinterpret_cast<void*>(~uintptr_t{0});  // DNNL_MEMORY_ALLOCATE
    const void* const wanted = api.dnnl_primitive_desc_query_md(how, kScratchDescription, 0);
    return wanted == nullptr || api.dnnl_memory_create(&scratch, wanted, api.engine, kAllocate) == kSuccess;
  }

  const OneDnnApi& api;
  std::vector<Part> parts;
  void* primitive = nullptr;
  void* scratch = nullptr;
};

OneDnn* OneDnn::load() {
  const char* named = std::getenv("OUTBOARD_HOST_ONEDNN");
  void* library = dlopen(named != nullptr && *named != '\0' ? named : "libdnnl.so.3", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  auto api = std::make_unique<OneDnnApi>();
  bool whole = true;
#define OUTBOARD_FIND(function) whole = whole && common::find_symbol(library, #function, api->function);
  OUTBOARD_FIND(dnnl_version)
  OUTBOARD_FIND(dnnl_engine_create)
  OUTBOARD_FIND(dnnl_stream_create)
  OUTBOARD_FIND(dnnl_stream_wait)
  OUTBOARD_FIND(dnnl_memory_desc_create_with_strides)
  OUTBOARD_FIND(dnnl_memory_desc_destroy)
  OUTBOARD_FIND(dnnl_memory_create)
  OUTBOARD_FIND(dnnl_memory_set_data_handle)
  OUTBOARD_FIND(dnnl_memory_destroy)
  OUTBOARD_FIND(dnnl_matmul_primitive_desc_create)
  OUTBOARD_FIND(dnnl_convolution_forward_primitive_desc_create)
  OUTBOARD_FIND(dnnl_primitive_attr_create)
  OUTBOARD_FIND(dnnl_primitive_attr_set_scratchpad_mode)
  OUTBOARD_FIND(dnnl_primitive_desc_query_md)
  OUTBOARD_FIND(dnnl_primitive_create)
  OUTBOARD_FIND(dnnl_primitive_desc_destroy)
  OUTBOARD_FIND(dnnl_primitive_execute)
  OUTBOARD_FIND(dnnl_primitive_destroy)
#undef OUTBOARD_FIND
  if (!whole || api->dnnl_version()->major != 3) return nullptr;
  common::find_symbol(library, "omp_set_num_threads", api->omp_set_num_threads);
  common::find_symbol(library, "omp_get_max_threads", api->omp_get_max_threads);
  if (api->dnnl_engine_create(&api->engine, kCpu, 0) != kSuccess) return nullptr;
  if (api->dnnl_stream_create(&api->stream, api->engine, kInOrder) != kSuccess) return nullptr;
  if (api->dnnl_primitive_attr_create(&api->attributes) != kSuccess) return nullptr;
  if (api->dnnl_primitive_attr_set_scratchpad_mode(api->attributes, kScratchOfUser) != kSuccess) return nullptr;
  return new OneDnn(std::move(api));
}

namespace {

/// How many threads oneDNN makes primitives for, and runs them with, when this thread calls it. It may be the program's
/// thread, and the OpenMP PyTorch's.
class Threads {
 public:
  Threads(const OneDnnApi& api, unsigned count) : api_(api) {
    if (!exists()) return;
    before_ = api_.omp_get_max_threads();
    api_.omp_set_num_threads(static_cast<int>(count));
  }
  ~Threads() {
    if (exists()) api_.omp_set_num_threads(before_);
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  bool exists() const { return api_.omp_set_num_threads != nullptr && api_.omp_get_max_threads != nullptr; }

  const OneDnnApi& api_;
  int before_ = 0;
};

}  // namespace

OneDnn::OneDnn(std::unique_ptr<OneDnnApi> api) : api_(std::move(api)) {
  const OneDnnApi::Version& version = *api_->dnnl_version();
  name_ = "oneDNN " + std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
          std::to_string(version.patch);
}

OneDnn::Function* OneDnn::find(const std::string& name, const std::vector<ob_operand>& operands, unsigned threads) {
  const std::lock_guard lock(mutex_);
  const std::string key = name + '\0' + std::to_string(threads) + '\0' + common::pattern_of(operands);
  const auto known = functions_.find(key);
  if (known != functions_.end()) return known->second->prepare(operands) ? known->second.get() : nullptr;
  auto function = std::make_unique<Function>(*api_, name, threads);
  if (!function->prepare(operands)) return nullptr;
  return functions_.emplace(key, std::move(function)).first->second.get();
}

OneDnn::Function::Function(const OneDnnApi& api, std::string name, unsigned threads)
    : api_(api), name_(std::move(name)), threads_(threads) {}

OneDnn::Function::Primitive* OneDnn::Function::primitive_for(const std::vector<ob_operand>& operands) {
  const std::string key = common::shapes_of(operands);
  const auto known = primitives_.find(key);
  if (known != primitives_.end()) return known->second.get();
  const std::optional<Problem> problem = problem_of(name_, operands);
  if (!problem) return nullptr;
  const Threads made_for(api_, threads_);
  auto made = std::make_unique<Primitive>(api_);
  if (!made->make(*problem, operands)) return nullptr;
  if (primitives_.size() == kMostPrimitives) primitives_.clear();
  return primitives_.emplace(key, std::move(made)).first->second.get();
}

bool OneDnn::Function::prepare(const std::vector<ob_operand>& operands) {
  const std::lock_guard lock(mutex_);
  return primitive_for(operands) != nullptr;
}

void OneDnn::Function::run(const std::vector<ob_operand>& operands) {
  const std::lock_guard lock(mutex_);
  Primitive* const primitive = primitive_for(operands);
  if (primitive == nullptr) throw std::runtime_error("oneDNN cannot compute " + name_ + " for these sizes");
  const Threads running(api_, threads_);
  std::array<OneDnnApi::Argument, 5> arguments;
  int count = 0, status = kSuccess;
  for (const Primitive::Part& part : primitive->parts) {
    void* const data = reinterpret_cast<void*>(operands[part.operand].data);
    if (status == kSuccess) status = api_.dnnl_memory_set_data_handle(part.memory, data);
    arguments[static_cast<size_t>(count++)] = {part.number, part.memory};
  }
  if (primitive->scratch != nullptr) arguments[static_cast<size_t>(count++)] = {kScratch, primitive->scratch};
  if (status == kSuccess) {
    status = api_.dnnl_primitive_execute(primitive->primitive, api_.stream, count, arguments.data());
  }
  if (status == kSuccess) status = api_.dnnl_stream_wait(api_.stream);
  if (status != kSuccess)
    throw std::runtime_error("oneDNN failed at " + name_ + " with status " + std::to_string(status));
}

}  // namespace outboard::host
