// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/library.h"

namespace outboard::cuda {

struct CublasApi;

/// Products of matrices by cuBLASLt (NVIDIA, "cuBLAS", versions 12 and 13), which is opened when the driver starts. Who
/// does not have it has no library functions.
class Cublas {
 public:
  /// The library that OUTBOARD_CUDA_CUBLASLT names, else libcublasLt.so.13 or .12 where the dynamic linker finds it;
  /// nullptr if there is none. Never deleted.
  static Cublas* load();

  /// Name and version.
  const std::string& name() const { return name_; }
  const CublasApi& api() const { return *api_; }

 private:
  explicit Cublas(std::unique_ptr<CublasApi> api);
  ~Cublas() = delete;

  std::unique_ptr<CublasApi> api_;
  std::string name_;
};

/// A product of matrices, for which cuBLASLt chooses an algorithm.
class Product : public Function {
 public:
  /// `handle` is cuBLASLt's, of the device.
  Product(const Cublas& library, void* handle, std::string name);
  ~Product() override;
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  bool prepare(const std::vector<ob_operand>& operands) override;
  Outcome run(const std::vector<ob_operand>& operands, Workspace& workspace, CUstream stream) override;

 private:
  struct Plan;

  Plan* plan_for(const std::vector<ob_operand>& operands);

  const Cublas& library_;
  void* const handle_;
  const std::string name_;
  std::mutex mutex_;
  Plans<Plan> plans_;
};

/// cuBLASLt's handle for the current context, or nullptr.
void* create_cublas(const Cublas& library);

}  // namespace outboard::cuda
