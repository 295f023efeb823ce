// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <numeric>
#include <optional>
#include <utility>

#include "common/symbols.h"

namespace outboard::cuda {

/// The part of cuDNN that is used (cudnn_graph.h). Handles and descriptors are pointers; statuses, types and attributes
/// numbers.
struct CudnnApi {
  size_t (*cudnnGetVersion)();
  const char* (*cudnnGetErrorString)(int status);
  void (*cudnnGetLastErrorString)(char* message, size_t bytes);
  int (*cudnnCreate)(void** handle);
  int (*cudnnSetStream)(void* handle, CUstream stream);
  int (*cudnnBackendCreateDescriptor)(int kind, void** descriptor);
  int (*cudnnBackendDestroyDescriptor)(void* descriptor);
  int (*cudnnBackendFinalize)(void* descriptor);
  int (*cudnnBackendSetAttribute)(void* descriptor, int attribute, int type, int64_t count, const void* values);
  int (*cudnnBackendGetAttribute)(void* descriptor, int attribute, int type, int64_t asked, int64_t* count,
                                  void* values);
  int (*cudnnBackendExecute)(void* handle, void* plan, void* pack);
};

namespace {

constexpr int kSuccess = 0;
constexpr size_t kMajor = 9;
enum DescriptorKind : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristics = 4,
  kExecutionPlan = 5,
  kConvolutionForward = 10,
  kPointwiseOperation = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17
};
enum AttributeType : int {
  kTypeHandle = 0,
  kTypeDataType = 1,
  kTypeBoolean = 2,
  kTypeInt64 = 3,
  kTypeFloat = 4,
  kTypeDouble = 5,
  kTypePointer = 6,
  kTypeConvolutionMode = 7,
  kTypeHeuristicsMode = 8,
  kTypeNumericalNote = 11,
  kTypePointwiseMode = 14,
  kTypeDescriptor = 15
};
enum Attribute : int {
  kPointwiseMode = 0,
  kPointwisePrecision = 1,
  kConvolutionPrecision = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionPostPaddings = 104,
  kConvolutionPrePaddings = 105,
  kConvolutionSpatialDimensions = 106,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kConfigEngine = 300,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kForwardAlpha = 700,
  kForwardBeta = 701,
  kForwardConvolution = 702,
  kForwardW = 703,
  kForwardX = 704,
  kForwardY = 705,
  kOperationPointwise = 750,
  kOperationX = 751,
  kOperationB = 752,
  kOperationY = 753,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineNotes = 1303
};
/// What is said of an engine's numbers.
enum Note : int { kTensorCores = 0, kInputsRounded = 1, kSumsRounded = 2, kNotDeterministic = 4 };
constexpr int64_t kMostNotes = 64;
constexpr int kCrossCorrelation = 1;                              // what PyTorch calls a convolution
constexpr int kAdd = 0;                                           // of pointwise modes
constexpr int kFastest = 3, kWhateverWorks = 2;                   // CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK
constexpr int kFloat = 0, kDouble = 1, kHalf = 2, kBfloat16 = 9;  // types of data
/// Addresses are looked at up to this multiple: vectors are no longer.
constexpr uint32_t kAlignment = 16;
/// Operands of the operator.
enum Operand : size_t { kSource, kWeights, kBias, kStride, kPadding, kDilation, kTransposed, kOutputPadding, kGroups };
constexpr size_t kTarget = 9, kOperands = 10;
/// The id of what is between a convolution and its bias. Others have the numbers of their operands.
constexpr int64_t kBetween = 100;

/// cuDNN's number for a dtype of PyTorch's.
std::optional<int> type_of(uint32_t dtype) {
  switch (dtype) {
    case 5:
      return kHalf;
    case 6:
      return kFloat;
    case 7:
      return kDouble;
    case 15:
      return kBfloat16;
    default:
      return std::nullopt;
  }
}

/// Dimensions and strides of a tensor, as cuDNN is to see them: batch, channels, and two dimensions or three.
struct View {
  size_t operand;
  std::vector<int64_t> dims, strides;

  static View of(const std::vector<ob_operand>& operands, size_t operand) {
    const ob_operand& tensor = operands[operand];
    View made{operand, {tensor.sizes, tensor.sizes + tensor.count}, {tensor.strides, tensor.strides + tensor.count}};
    if (made.dims.size() == 3) {  // in one dimension: lines are images of one row
      made.strides.insert(made.strides.begin() + 2, made.dims[2] * made.strides[2]);
      made.dims.insert(made.dims.begin() + 2, 1);
    }
    return made;
  }

  /// Strides of elements without gaps, with channels before all other dimensions or behind them.
  std::vector<int64_t> packed(bool channels_last) const {
    std::vector<size_t> order(dims.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (channels_last) std::rotate(order.begin() + 1, order.begin() + 2, order.end());
    std::vector<int64_t> made(dims.size());
    int64_t stride = 1;
    for (auto each = order.rbegin(); each != order.rend(); ++each) {
      made[*each] = stride;
      stride *= dims[*each];
    }
    return made;
  }

  bool lies(bool channels_last) const {
    const std::vector<int64_t> wanted = packed(channels_last);
    for (size_t i = 0; i < dims.size(); ++i) {
      if (dims[i] != 1 && strides[i] != wanted[i]) return false;
    }
    return true;
  }

  /// PyTorch gives dimensions of 1 any strides; cuDNN tells layouts by them.
  void settle(bool channels_last) {
    if (lies(channels_last)) strides = packed(channels_last);
    for (int64_t& stride : strides) stride = std::max<int64_t>(stride, 1);
  }
};

/// What is computed: target = source * weights, and a number added to each channel.
struct Problem {
  int type, compute_type;
  View source, weights, target;
  std::optional<View> bias;
  std::vector<int64_t> stride, padding, dilation;
};

bool are_numbers(const ob_operand& operand, size_t count, int64_t least) {
  return operand.kind == OB_OPERAND_INTEGERS && operand.count == count &&
         std::all_of(operand.sizes, operand.sizes + count, [=](int64_t each) { return each >= least; });
}

/// Whether the operands are those of a convolution that is not transposed, all of one dtype.
bool are_usable(const std::vector<ob_operand>& operands) {
  if (operands.size() != kOperands || operands[kTransposed].integer != 0) return false;
  const ob_operand& target = operands[kTarget];
  for (const size_t each : {size_t{kSource}, size_t{kWeights}, kTarget}) {
    if (!is_tensor(operands[each]) || operands[each].count != target.count) return false;
  }
  for (const ob_operand& each : operands) {
    if (is_tensor(each) && each.dtype != target.dtype) return false;
  }
  if (target.count < 3 || target.count > 5) return false;
  const ob_operand& bias = operands[kBias];
  if (is_tensor(bias) && (bias.count != 1 || (bias.strides[0] != 1 && bias.sizes[0] != 1))) return false;
  const size_t rank = target.count - 2;
  return are_numbers(operands[kStride], rank, 1) && are_numbers(operands[kPadding], rank, 0) &&
         are_numbers(operands[kDilation], rank, 1);
}

/// Numbers of a convolution's dimensions; `neutral` is that of one that was added.
std::vector<int64_t> numbers_of(const ob_operand& operand, int64_t neutral) {
  std::vector<int64_t> made(operand.sizes, operand.sizes + operand.count);
  if (made.size() == 1) made.insert(made.begin(), neutral);
  return made;
}

View bias_view(const View& target) {
  View made{kBias, std::vector<int64_t>(target.dims.size(), 1), {}};
  made.dims[1] = target.dims[1];
  return made;
}

std::optional<Problem> problem_of(const std::vector<ob_operand>& operands) {
  if (!are_usable(operands)) return std::nullopt;
  const std::optional<int> type = type_of(operands[kTarget].dtype);
  if (!type) return std::nullopt;
  Problem made{*type,
               *type == kDouble ? kDouble : kFloat,
               View::of(operands, kSource),
               View::of(operands, kWeights),
               View::of(operands, kTarget),
               std::nullopt,
               numbers_of(operands[kStride], 1),
               numbers_of(operands[kPadding], 0),
               numbers_of(operands[kDilation], 1)};
  bool first = true, last = true;
  for (const View* view : {&made.source, &made.weights, &made.target}) {
    first = first && view->lies(false);
    last = last && view->lies(true);
  }
  const bool channels_last = last && !first;
  for (View* view : {&made.source, &made.weights, &made.target}) view->settle(channels_last);
  if (is_tensor(operands[kBias])) {
    made.bias = bias_view(made.target);
    made.bias->strides = made.bias->packed(channels_last);
  }
  return made;
}

/// An object of cuDNN's: attributes are set, then it is finalized. What fails is remembered, and all after it is left.
class Descriptor {
 public:
  Descriptor(const CudnnApi& api, int kind) : api_(api) {
    good_ = api_.cudnnBackendCreateDescriptor(kind, &handle_) == kSuccess;
  }
  ~Descriptor() {
    if (handle_ != nullptr) api_.cudnnBackendDestroyDescriptor(handle_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  template <typename T>
  Descriptor& set(int attribute, int type, const std::vector<T>& values) {
    return set(attribute, type, values.data(), values.size());
  }
  template <typename T>
  Descriptor& set(int attribute, int type, const T& value) {
    return set(attribute, type, &value, 1);
  }
  Descriptor& set(int attribute, const Descriptor& other) {
    good_ = good_ && other.good();
    return set(attribute, kTypeDescriptor, &other.handle_, 1);
  }
  Descriptor& finalize() {
    good_ = good_ && api_.cudnnBackendFinalize(handle_) == kSuccess;
    return *this;
  }

  /// How many values there were, of which at most `most` were written.
  int64_t get(int attribute, int type, int64_t most, void* values) const {
    int64_t count = 0;
    if (!good_ || api_.cudnnBackendGetAttribute(handle_, attribute, type, most, &count, values) != kSuccess) return 0;
    return count;
  }

  bool good() const { return good_; }
  void* get() const { return handle_; }

 private:
  Descriptor& set(int attribute, int type, const void* values, size_t count) {
    good_ = good_ &&
            api_.cudnnBackendSetAttribute(handle_, attribute, type, static_cast<int64_t>(count), values) == kSuccess;
    return *this;
  }

  const CudnnApi& api_;
  void* handle_ = nullptr;
  bool good_;
};

/// Whether an engine computes what is asked for: the same each time, and with numbers as they are. Of the types that
/// tensor cores multiply, float is the one that they round first.
bool is_exact(const CudnnApi& api, const Descriptor& config, int type) {
  const Descriptor engine(api, kEngine);
  void* handle = engine.get();
  if (!engine.good() || config.get(kConfigEngine, kTypeDescriptor, 1, &handle) != 1) return false;
  int notes[kMostNotes];
  const int64_t count = engine.get(kEngineNotes, kTypeNumericalNote, kMostNotes, notes);
  return std::none_of(notes, notes + std::min(count, kMostNotes), [&](int note) {
    return note == kInputsRounded || note == kSumsRounded || note == kNotDeterministic ||
           (note == kTensorCores && type == kFloat);
  });
}

/// What cuDNN executes, and the operands whose addresses it wants.
struct Step {
  std::unique_ptr<Descriptor> config, plan;
  std::vector<int64_t> operands;
};

}  // namespace

/// cuDNN's objects for one set of sizes: one step for a convolution with its bias, or two where no engine has both.
struct Convolution::Plan {
  Plan(const CudnnHandle& handle, Problem problem_, const std::vector<ob_operand>& operands)
      : api(handle.api()), session(handle.get()), problem(std::move(problem_)) {
    for (const ob_operand& each : operands) alignments.push_back(alignment_of(each.data, kAlignment));
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  bool make() {
    const Descriptor& target = tensor(problem.target, kTarget);
    const std::vector<int64_t> factors{kSource, kWeights, kTarget};
    if (!problem.bias) return add({&convolution(target)}, factors);
    const Descriptor& bias = tensor(*problem.bias, kBias);
    const Descriptor& between = tensor(problem.target, kBetween);
    if (add({&convolution(between), &addition(between, bias, target)}, {kSource, kWeights, kBias, kTarget}))
      return true;
    // cuDNN allows a result in an operand's place in graphs of one operation.
    return add({&convolution(target)}, factors) && add({&addition(target, bias, target)}, {kBias, kTarget});
  }

  Descriptor& add_part(int kind) { return parts.emplace_back(api, kind); }

  const Descriptor& tensor(const View& view, int64_t id) {
    const bool between = id == kBetween;  // never in memory, so as exact as sums are
    return add_part(kTensor)
        .set(kTensorDataType, kTypeDataType, between ? problem.compute_type : problem.type)
        .set(kTensorDimensions, kTypeInt64, view.dims)
        .set(kTensorStrides, kTypeInt64, view.strides)
        .set(kTensorId, kTypeInt64, id)
        .set(kTensorAlignment, kTypeInt64, alignments[view.operand])
        .set(kTensorIsVirtual, kTypeBoolean, between)
        .finalize();
  }

  const Descriptor& convolution(const Descriptor& target) {
    const auto rank = static_cast<int64_t>(problem.stride.size());
    const Descriptor& how = add_part(kConvolution)
                                .set(kConvolutionPrecision, kTypeDataType, problem.compute_type)
                                .set(kConvolutionMode, kTypeConvolutionMode, kCrossCorrelation)
                                .set(kConvolutionSpatialDimensions, kTypeInt64, rank)
                                .set(kConvolutionDilations, kTypeInt64, problem.dilation)
                                .set(kConvolutionStrides, kTypeInt64, problem.stride)
                                .set(kConvolutionPrePaddings, kTypeInt64, problem.padding)
                                .set(kConvolutionPostPaddings, kTypeInt64, problem.padding)
                                .finalize();
    Descriptor& made = add_part(kConvolutionForward);
    made.set(kForwardConvolution, how)
        .set(kForwardX, tensor(problem.source, kSource))
        .set(kForwardW, tensor(problem.weights, kWeights))
        .set(kForwardY, target);
    if (problem.compute_type == kDouble) {
      made.set(kForwardAlpha, kTypeDouble, 1.0).set(kForwardBeta, kTypeDouble, 0.0);
    } else {
      made.set(kForwardAlpha, kTypeFloat, 1.0F).set(kForwardBeta, kTypeFloat, 0.0F);
    }
    return made.finalize();
  }

  const Descriptor& addition(const Descriptor& source, const Descriptor& bias, const Descriptor& target) {
    const Descriptor& how = add_part(kPointwise)
                                .set(kPointwiseMode, kTypePointwiseMode, kAdd)
                                .set(kPointwisePrecision, kTypeDataType, problem.compute_type)
                                .finalize();
    return add_part(kPointwiseOperation)
        .set(kOperationPointwise, how)
        .set(kOperationX, source)
        .set(kOperationB, bias)
        .set(kOperationY, target)
        .finalize();
  }

  /// A step for a graph of these operations; false if there is no engine for it.
  bool add(const std::vector<const Descriptor*>& operations, std::vector<int64_t> wanted) {
    std::vector<void*> handles;
    for (const Descriptor* each : operations) {
      if (!each->good()) return false;
      handles.push_back(each->get());
    }
    const Descriptor& graph = add_part(kOperationGraph)
                                  .set(kGraphHandle, kTypeHandle, session)
                                  .set(kGraphOperations, kTypeDescriptor, handles)
                                  .finalize();
    Step step{nullptr, nullptr, std::move(wanted)};
    if (!choose(graph, kFastest, &step) && !choose(graph, kWhateverWorks, &step)) return false;
    steps.push_back(std::move(step));
    return true;
  }

  /// Engines for a graph, the one that cuDNN expects to be fastest first.
  std::vector<std::unique_ptr<Descriptor>> engines_for(const Descriptor& graph, int mode) {
    const Descriptor& heuristics =
        add_part(kHeuristics).set(kHeuristicsGraph, graph).set(kHeuristicsMode, kTypeHeuristicsMode, mode).finalize();
    const int64_t count = heuristics.get(kHeuristicsResults, kTypeDescriptor, 0, nullptr);
    std::vector<std::unique_ptr<Descriptor>> made;
    std::vector<void*> handles;
    for (int64_t i = 0; i < count; ++i) {
      auto config = std::make_unique<Descriptor>(api, kEngineConfig);
      if (!config->good()) return {};
      handles.push_back(config->get());
      made.push_back(std::move(config));
    }
    const int64_t found = heuristics.get(kHeuristicsResults, kTypeDescriptor, count, handles.data());
    made.resize(static_cast<size_t>(std::min(found, count)));
    return made;
  }

  /// Takes the first engine that is allowed and of which a plan can be made.
  bool choose(const Descriptor& graph, int mode, Step* step) {
    for (std::unique_ptr<Descriptor>& config : engines_for(graph, mode)) {
      if (!is_exact(api, *config, problem.type)) continue;
      auto plan = std::make_unique<Descriptor>(api, kExecutionPlan);
      plan->set(kPlanHandle, kTypeHandle, session).set(kPlanConfig, *config).finalize();
      int64_t bytes = 0;
      const bool known = plan->get(kPlanWorkspace, kTypeInt64, 1, &bytes) == 1;
      if (!known || bytes > static_cast<int64_t>(kWorkspace)) continue;
      step->config = std::move(config);
      step->plan = std::move(plan);
      return true;
    }
    return false;
  }

  /// cuDNN's status.
  int execute(const Step& step, const std::vector<ob_operand>& given, CUdeviceptr workspace) const {
    std::vector<void*> pointers;
    for (const int64_t each : step.operands) {
      pointers.push_back(reinterpret_cast<void*>(given[static_cast<size_t>(each)].data));
    }
    Descriptor pack(api, kVariantPack);
    pack.set(kPackIds, kTypeInt64, step.operands)
        .set(kPackPointers, kTypePointer, pointers)
        .set(kPackWorkspace, kTypePointer, reinterpret_cast<void*>(workspace))
        .finalize();
    constexpr int kBadParameter = 2000;
    return pack.good() ? api.cudnnBackendExecute(session, step.plan->get(), pack.get()) : kBadParameter;
  }

  const CudnnApi& api;
  void* const session;
  const Problem problem;
  std::vector<int64_t> alignments;  // of operands
  std::deque<Descriptor> parts;     // of graphs; plans refer to them
  std::vector<Step> steps;
};

Cudnn* Cudnn::load(std::string* why) {
  const char* const chosen = std::getenv("OUTBOARD_CUDA_CUDNN");
  const char* const file = chosen != nullptr && *chosen != '\0' ? chosen : "libcudnn.so.9";
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  *why = "cuDNN was not found: 'pip install nvidia-cudnn-cu13' brings it";
  if (library == nullptr) return nullptr;
  auto api = std::make_unique<CudnnApi>();
  bool whole = true;
#define OUTBOARD_FIND(function) whole = whole && common::find_symbol(library, #function, api->function);
  OUTBOARD_FIND(cudnnGetVersion)
  OUTBOARD_FIND(cudnnGetErrorString)
  OUTBOARD_FIND(cudnnGetLastErrorString)
  OUTBOARD_FIND(cudnnCreate)
  OUTBOARD_FIND(cudnnSetStream)
  OUTBOARD_FIND(cudnnBackendCreateDescriptor)
  OUTBOARD_FIND(cudnnBackendDestroyDescriptor)
  OUTBOARD_FIND(cudnnBackendFinalize)
  OUTBOARD_FIND(cudnnBackendSetAttribute)
  OUTBOARD_FIND(cudnnBackendGetAttribute)
  OUTBOARD_FIND(cudnnBackendExecute)
#undef OUTBOARD_FIND
  *why = std::string(file) + " is not cuDNN 9";
  return whole && api->cudnnGetVersion() / 10000 == kMajor ? new Cudnn(std::move(api)) : nullptr;
}

Cudnn::Cudnn(std::unique_ptr<CudnnApi> api) : api_(std::move(api)) {
  const size_t version = api_->cudnnGetVersion();
  name_ = "cuDNN " + std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
          std::to_string(version % 100);
}

std::unique_ptr<CudnnHandle> CudnnHandle::create(const Cudnn& library, std::string* why) {
  void* handle = nullptr;
  const int status = library.api().cudnnCreate(&handle);
  if (status == kSuccess) return std::unique_ptr<CudnnHandle>(new CudnnHandle(library, handle));
  *why = "cuDNN does not work with this GPU: cudnnCreate returned " + text_of(library.api(), status);
  return nullptr;
}

std::string CudnnHandle::text_of(const CudnnApi& api, int status) {
  char detail[512] = "";
  api.cudnnGetLastErrorString(detail, sizeof(detail));
  detail[sizeof(detail) - 1] = '\0';
  const std::string name = api.cudnnGetErrorString(status);
  return std::to_string(status) + " (" + name + (*detail != '\0' ? ": " + std::string(detail) : "") + ")";
}

Convolution::Convolution(CudnnHandle& handle) : handle_(handle) {}
Convolution::~Convolution() = default;

Convolution::Plan* Convolution::plan_for(const std::vector<ob_operand>& operands) {
  return plans_.of(key_of(operands, kAlignment), [&]() -> std::unique_ptr<Plan> {
    std::optional<Problem> problem = problem_of(operands);
    if (!problem) return nullptr;
    auto made = std::make_unique<Plan>(handle_, std::move(*problem), operands);
    return made->make() ? std::move(made) : nullptr;
  });
}

bool Convolution::prepare(const std::vector<ob_operand>& operands) {
  const std::lock_guard lock(handle_.mutex());
  return plan_for(operands) != nullptr;
}

Outcome Convolution::run(const std::vector<ob_operand>& operands, CUdeviceptr workspace, CUstream stream) {
  const std::lock_guard lock(handle_.mutex());
  const Plan* const plan = plan_for(operands);
  if (plan == nullptr) return {OB_UNSUPPORTED, "cuDNN cannot compute this convolution"};
  const CudnnApi& api = handle_.api();
  int status = api.cudnnSetStream(handle_.get(), stream);
  if (status != kSuccess) return {OB_INTERNAL, "cudnnSetStream returned " + CudnnHandle::text_of(api, status)};
  for (const Step& step : plan->steps) {
    status = plan->execute(step, operands, workspace);
    if (status != kSuccess) return {OB_INTERNAL, "cudnnBackendExecute returned " + CudnnHandle::text_of(api, status)};
  }
  return {};
}

}  // namespace outboard::cuda
