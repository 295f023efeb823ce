// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn_graph.h"

#include <algorithm>
#include <utility>

namespace outboard::cuda::cudnn {
namespace {

constexpr int64_t kMostNotes = 64;
constexpr int kFastest = 3, kWhateverWorks = 2;  // CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK

}  // namespace

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

const Descriptor& Graphs::tensor(const TensorView& view) {
  Descriptor& made = part(kTensor);
  made.set(kTensorDataType, kTypeDataType, view.type)
      .set(kTensorDimensions, kTypeInt64, view.dims)
      .set(kTensorStrides, kTypeInt64, view.strides)
      .set(kTensorId, kTypeInt64, view.id)
      .set(kTensorAlignment, kTypeInt64, view.alignment)
      .set(kTensorIsVirtual, kTypeBoolean, view.is_virtual);
  if (view.is_by_value) made.set(kTensorIsByValue, kTypeBoolean, true);
  return made.finalize();
}

const Descriptor& Graphs::graph(const std::vector<const Descriptor*>& operations, bool alone) {
  Descriptor& made = part(kOperationGraph);
  if (alone) made.set(kGraphHandle, kTypeHandle, session_);
  return made.set(kGraphOperations, operations).finalize();
}

bool Graphs::add(const std::vector<const Descriptor*>& operations, std::vector<int64_t> ids) {
  const Descriptor& whole = graph(operations, true);
  if (!whole.good()) return false;
  Step step{nullptr, nullptr, std::move(ids)};
  if (!choose(whole, kFastest, &step) && !choose(whole, kWhateverWorks, &step)) return false;
  steps_.push_back(std::move(step));
  return true;
}

/// Engines for a graph, the one that cuDNN expects to be fastest first.
std::vector<std::unique_ptr<Descriptor>> Graphs::engines_for(const Descriptor& graph, int mode) {
  const Descriptor& heuristics =
      part(kHeuristics).set(kHeuristicsGraph, graph).set(kHeuristicsMode, kTypeHeuristicsMode, mode).finalize();
  const int64_t count = heuristics.get(kHeuristicsResults, kTypeDescriptor, 0, nullptr);
  std::vector<std::unique_ptr<Descriptor>> made;
  std::vector<void*> handles;
  for (int64_t i = 0; i < count; ++i) {
    auto config = std::make_unique<Descriptor>(api_, kEngineConfig);
    if (!config->good()) return {};
    handles.push_back(config->get());
    made.push_back(std::move(config));
  }
  const int64_t found = heuristics.get(kHeuristicsResults, kTypeDescriptor, count, handles.data());
  made.resize(static_cast<size_t>(std::min(found, count)));
  return made;
}

/// Takes the first engine that is allowed and of which a plan can be made.
bool Graphs::choose(const Descriptor& graph, int mode, Step* step) {
  for (std::unique_ptr<Descriptor>& config : engines_for(graph, mode)) {
    if (!is_exact(*config)) continue;
    auto plan = std::make_unique<Descriptor>(api_, kExecutionPlan);
    plan->set(kPlanHandle, kTypeHandle, session_).set(kPlanConfig, *config).finalize();
    int64_t bytes = 0;
    const bool known = plan->get(kPlanWorkspace, kTypeInt64, 1, &bytes) == 1;
    if (!known || bytes > most_workspace_) continue;
    workspace_ = std::max(workspace_, bytes);
    step->config = std::move(config);
    step->plan = std::move(plan);
    return true;
  }
  return false;
}

/// Whether an engine computes what is asked for: the same each time, and with numbers as they are. Of the types that
/// tensor cores multiply, float is the one that they round first.
bool Graphs::is_exact(const Descriptor& config) const {
  const Descriptor engine(api_, kEngine);
  void* handle = engine.get();
  if (!engine.good() || config.get(kConfigEngine, kTypeDescriptor, 1, &handle) != 1) return false;
  int notes[kMostNotes];
  const int64_t count = engine.get(kEngineNotes, kTypeNumericalNote, kMostNotes, notes);
  return std::none_of(notes, notes + std::min(count, kMostNotes), [&](int note) {
    return note == kInputsRounded || note == kSumsRounded || note == kNotDeterministic ||
           (note == kTensorCores && type_ == kFloat);
  });
}

int Graphs::execute(const std::function<void*(int64_t)>& address_of, CUdeviceptr workspace) const {
  for (const Step& step : steps_) {
    std::vector<void*> pointers;
    for (const int64_t each : step.ids) pointers.push_back(address_of(each));
    Descriptor pack(api_, kVariantPack);
    pack.set(kPackIds, kTypeInt64, step.ids)
        .set(kPackPointers, kTypePointer, pointers)
        .set(kPackWorkspace, kTypePointer, reinterpret_cast<void*>(workspace))
        .finalize();
    constexpr int kBadParameter = 2000;
    const int status = pack.good() ? api_.cudnnBackendExecute(session_, step.plan->get(), pack.get()) : kBadParameter;
    if (status != kSuccess) return status;
  }
  return kSuccess;
}

}  // namespace outboard::cuda::cudnn

namespace outboard::cuda {

using cudnn::kSuccess;

CudnnFunction::CudnnFunction(CudnnHandle& handle, const char* what) : handle_(handle), what_(what) {}
CudnnFunction::~CudnnFunction() = default;

cudnn::Plan* CudnnFunction::plan_for(const std::vector<ob_operand>& operands, size_t most_workspace) {
  Plans<cudnn::Plan>& plans = most_workspace == kWorkspace ? modest_plans_ : plans_;
  return plans.of(key_of(operands, cudnn::kVector), [&] { return make(operands, most_workspace); });
}

bool CudnnFunction::prepare(const std::vector<ob_operand>& operands) {
  const std::lock_guard lock(handle_.mutex());
  return plan_for(operands, handle_.most_workspace()) != nullptr;
}

Outcome CudnnFunction::run(const std::vector<ob_operand>& operands, Workspace& workspace, CUstream stream) {
  const std::lock_guard lock(handle_.mutex());
  cudnn::Plan* plan = plan_for(operands, handle_.most_workspace());
  if (plan == nullptr) return {OB_UNSUPPORTED, std::string("cuDNN cannot compute this ") + what_};
  CUresult memory = workspace.reserve(plan->graphs.workspace());
  if (memory == CUDA_ERROR_OUT_OF_MEMORY && plan->graphs.workspace() > kWorkspace) {
    plan = plan_for(operands, kWorkspace);
    if (plan != nullptr) memory = workspace.reserve(kWorkspace);
  }
  if (memory != CUDA_SUCCESS) return {OB_OK, "", memory};
  const CudnnApi& api = handle_.api();
  int status = api.cudnnSetStream(handle_.get(), stream);
  if (status != kSuccess) return {OB_INTERNAL, "cudnnSetStream returned " + CudnnHandle::text_of(api, status)};
  const auto address_of = [&](int64_t id) { return plan->address_of(id, operands); };
  status = plan->graphs.execute(address_of, workspace.address());
  if (status != kSuccess) return {OB_INTERNAL, "cudnnBackendExecute returned " + CudnnHandle::text_of(api, status)};
  return {};
}

}  // namespace outboard::cuda
