// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/cudnn.h"

/// cuDNN's graph API (cudnn_graph.h): operations on tensors become a graph, for which engines are found, and a plan of
/// one of them is executed. Callers hold the handle's mutex.
namespace outboard::cuda {

/// The part of cuDNN that is used. Handles and descriptors are pointers; statuses, types and attributes numbers.
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

namespace cudnn {

constexpr int kSuccess = 0;
enum DescriptorKind : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristics = 4,
  kExecutionPlan = 5,
  kConvolutionForward = 10,
  kConvolutionFilter = 11,  // the gradient of weights
  kConvolutionData = 12,    // the gradient of what is convolved
  kPointwiseOperation = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kAttentionForward = 41,
  kAttentionBackward = 43,
  kDiagonalBandMask = 44,
  kSoftmax = 45
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
  kDataAlpha = 706,
  kDataBeta = 707,
  kDataConvolution = 708,
  kDataW = 709,
  kDataX = 710,
  kDataY = 711,
  kFilterAlpha = 712,
  kFilterBeta = 713,
  kFilterConvolution = 714,
  kFilterW = 715,
  kFilterX = 716,
  kFilterY = 717,
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
  kTensorIsByValue = 908,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineNotes = 1303,
  kAttentionQuery = 2800,
  kAttentionKey = 2801,
  kAttentionValue = 2802,
  kAttentionOut = 2803,
  kAttentionScale = 2805,
  kAttentionScores = 2811,  // a graph of what becomes of scores
  kAttentionScoresIn = 2812,
  kAttentionScoresOut = 2813,
  kAttentionSoftmax = 2814,
  kBandX = 3000,
  kBandOther = 3005,  // what stands in a place outside the band
  kBandY = 3006,
  kBandComparison = 3007,
  kSoftmaxX = 3100,
  kSoftmaxY = 3101,
  kSoftmaxStatistics = 3102
};
/// What a convolution and its gradients call their kind and attributes.
struct ConvolutionNames {
  int kind, alpha, beta, convolution, w, x, y;
};
constexpr ConvolutionNames kForwardNames{kConvolutionForward, kForwardAlpha, kForwardBeta, kForwardConvolution,
                                         kForwardW,           kForwardX,     kForwardY};
constexpr ConvolutionNames kDataNames{kConvolutionData, kDataAlpha, kDataBeta, kDataConvolution,
                                      kDataW,           kDataX,     kDataY};
constexpr ConvolutionNames kFilterNames{kConvolutionFilter, kFilterAlpha, kFilterBeta, kFilterConvolution,
                                        kFilterW,           kFilterX,     kFilterY};
/// What is said of an engine's numbers.
enum Note : int { kTensorCores = 0, kInputsRounded = 1, kSumsRounded = 2, kNotDeterministic = 4 };
constexpr int kFloat = 0, kDouble = 1, kHalf = 2, kBfloat16 = 9;  // types of data
/// Bytes of the longest vectors that cuDNN's kernels read and write: addresses are looked at up to this multiple.
constexpr uint32_t kVector = 16;

/// cuDNN's number for a dtype of PyTorch's.
std::optional<int> type_of(uint32_t dtype);

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

  Descriptor& set(int attribute, const std::vector<const Descriptor*>& others) {
    std::vector<void*> handles;
    for (const Descriptor* each : others) {
      good_ = good_ && each->good();
      handles.push_back(each->handle_);
    }
    return set(attribute, kTypeDescriptor, handles);
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

/// How a tensor is described.
struct TensorView {
  int64_t id;
  int type;
  std::vector<int64_t> dims, strides;
  int64_t alignment = kVector;  // bytes, of its address
  bool is_virtual = false;      // between two operations, never in memory
  bool is_by_value = false;     // its address is the host's, read when the plan is executed
};

/// What cuDNN executes, and the ids of tensors whose addresses it wants.
struct Step {
  std::unique_ptr<Descriptor> config, plan;
  std::vector<int64_t> ids;
};

/// Graphs for one set of sizes, and the steps that carry them out.
class Graphs {
 public:
  /// `type`: that of the operands. `most_workspace`: bytes that a step may have for intermediate results.
  Graphs(const CudnnHandle& handle, int type, size_t most_workspace)
      : api_(handle.api()),
        session_(handle.get()),
        type_(type),
        most_workspace_(static_cast<int64_t>(most_workspace)) {}
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  /// A descriptor that lives as long as the graphs: plans refer to them.
  Descriptor& part(int kind) { return parts_.emplace_back(api_, kind); }
  const Descriptor& tensor(const TensorView& view);
  /// The graph of these operations; on its own (`alone`), or to be one operation's own.
  const Descriptor& graph(const std::vector<const Descriptor*>& operations, bool alone);
  /// A step for a graph of these operations; false if there is no engine for it.
  bool add(const std::vector<const Descriptor*>& operations, std::vector<int64_t> ids);
  /// Bytes that `execute` needs for intermediate results.
  size_t workspace() const { return static_cast<size_t>(workspace_); }
  /// Submits all steps to the handle's stream; cuDNN's status. `address_of` knows addresses by id.
  int execute(const std::function<void*(int64_t)>& address_of, CUdeviceptr workspace) const;

 private:
  std::vector<std::unique_ptr<Descriptor>> engines_for(const Descriptor& graph, int mode);
  bool choose(const Descriptor& graph, int mode, Step* step);
  bool is_exact(const Descriptor& config) const;

  const CudnnApi& api_;
  void* const session_;
  const int type_;
  const int64_t most_workspace_;
  int64_t workspace_ = 0;
  std::deque<Descriptor> parts_;
  std::vector<Step> steps_;
};

/// What an operator has prepared for one set of sizes. Ids are numbers of operands, or what derived classes know.
class Plan {
 public:
  Plan(const CudnnHandle& handle, int type, size_t most_workspace) : graphs(handle, type, most_workspace) {}
  virtual ~Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  virtual void* address_of(int64_t id, const std::vector<ob_operand>& operands) {
    return reinterpret_cast<void*>(operands[static_cast<size_t>(id)].data);
  }

  Graphs graphs;
};

}  // namespace cudnn
}  // namespace outboard::cuda
