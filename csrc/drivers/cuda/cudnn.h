// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/library.h"

namespace outboard::cuda {

struct CudnnApi;

/// Convolutions and attention by cuDNN (NVIDIA, "cuDNN", version 9, its graph API), which is opened when the driver
/// starts. Without cuDNN there are none.
class Cudnn {
 public:
  /// The library that OUTBOARD_CUDA_CUDNN names, else libcudnn.so.9 where the dynamic linker finds it; nullptr, and
  /// `why` says why, if there is none of version 9. Never deleted.
  static Cudnn* load(std::string* why);

  /// Name and version.
  const std::string& name() const { return name_; }
  const CudnnApi& api() const { return *api_; }
  /// Whether this version has attention as one operation, with a graph of what becomes of scores: 9.21 and later.
  bool has_attention() const;

 private:
  explicit Cudnn(std::unique_ptr<CudnnApi> api);
  ~Cudnn() = delete;

  std::unique_ptr<CudnnApi> api_;
  std::string name_;
};

/// cuDNN on one device. Its manual has threads take turns at a handle, and says so of what is made with one, too: who
/// uses it holds the mutex. Never destroyed, as the device is not.
class CudnnHandle {
 public:
  /// For the current context; nullptr, and `why` says why, if cuDNN does not work there.
  static std::unique_ptr<CudnnHandle> create(const Cudnn& library, std::string* why);

  const CudnnApi& api() const { return library_.api(); }
  void* get() const { return handle_; }
  std::mutex& mutex() { return mutex_; }
  /// Bytes that a call may use for intermediate results: a share of the device's memory.
  size_t most_workspace() const { return most_workspace_; }
  /// What cuDNN says of a status, and of the calling thread's last error: "5000 (CUDNN_STATUS_EXECUTION_FAILED: ...)".
  static std::string text_of(const CudnnApi& api, int status);

 private:
  CudnnHandle(const Cudnn& library, void* handle, size_t most_workspace)
      : library_(library), handle_(handle), most_workspace_(most_workspace) {}

  const Cudnn& library_;
  void* const handle_;
  const size_t most_workspace_;
  std::mutex mutex_;
};

namespace cudnn {
class Plan;
}

/// An operator by cuDNN, whichever it is. What it prepared belongs to the handle, whose mutex it holds meanwhile.
class CudnnFunction : public Function {
 public:
  /// `what`: for messages.
  CudnnFunction(CudnnHandle& handle, const char* what);
  ~CudnnFunction() override;
  CudnnFunction(const CudnnFunction&) = delete;
  CudnnFunction& operator=(const CudnnFunction&) = delete;

  bool prepare(const std::vector<ob_operand>& operands) override;
  /// What was found for more memory than there is, is found anew.
  Outcome run(const std::vector<ob_operand>& operands, Workspace& workspace, CUstream stream) override;

 protected:
  CudnnHandle& handle() { return handle_; }

 private:
  /// nullptr if cuDNN cannot do it.
  virtual std::unique_ptr<cudnn::Plan> make(const std::vector<ob_operand>& operands, size_t most_workspace) = 0;
  cudnn::Plan* plan_for(const std::vector<ob_operand>& operands, size_t most_workspace);

  CudnnHandle& handle_;
  const char* const what_;
  Plans<cudnn::Plan> plans_, modest_plans_;  // guarded by the handle's mutex
};

/// Convolutions in one, two and three dimensions, transposed or not, with groups and a bias, and their gradients, one
/// in each call. cuDNN's heuristics choose the engine, among those that are deterministic and round no operand and no
/// sum to fewer bits: TF32 is none of them.
class Convolution : public CudnnFunction {
 public:
  static constexpr const char* kName = "aten::convolution";
  static constexpr const char* kGradient = "aten::convolution_backward";

  Convolution(CudnnHandle& handle, bool is_gradient)
      : CudnnFunction(handle, is_gradient ? "gradient of a convolution" : "convolution"), is_gradient_(is_gradient) {}

 private:
  std::unique_ptr<cudnn::Plan> make(const std::vector<ob_operand>& operands, size_t most_workspace) override;

  const bool is_gradient_;
};

/// Attention, forward, in float16 and bfloat16 with sums in float32: with groups of heads, causal or not. Without
/// masks, since nobody says what cuDNN makes of a query that may look at nothing, and without dropout.
///
/// cuDNN compiles a kernel for each set of sizes, in about a second.
class Attention : public CudnnFunction {
 public:
  static constexpr const char* kName = "aten::_scaled_dot_product_flash_attention_for_cpu";

  explicit Attention(CudnnHandle& handle) : CudnnFunction(handle, "attention") {}

 private:
  std::unique_ptr<cudnn::Plan> make(const std::vector<ob_operand>& operands, size_t most_workspace) override;
};

}  // namespace outboard::cuda
