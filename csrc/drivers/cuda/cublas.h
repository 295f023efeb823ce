// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/api.h"
#include "outboard/driver.h"

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

/// One operator on one device, with an algorithm for each set of sizes, strides and alignments. Thread-safe. The
/// device's context is current where it is used.
class Product {
 public:
  /// Bytes that an algorithm may use for intermediate results. A call is given as many, for its stream alone.
  static constexpr size_t kWorkspace = size_t{32} << 20;

  /// `handle` is cuBLASLt's, of the device.
  Product(const Cublas& library, void* handle, std::string name);
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  /// Whether there is an algorithm for these operands.
  bool prepare(const std::vector<ob_operand>& operands);
  /// Submits it. cuBLAS's status: 0 if all went well.
  int run(const std::vector<ob_operand>& operands, CUdeviceptr workspace, CUstream stream);

 private:
  struct Plan;

  Plan* plan_for(const std::vector<ob_operand>& operands);

  const Cublas& library_;
  void* const handle_;
  const std::string name_;
  std::mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<Plan>> plans_;
};

/// cuBLASLt's handle for the current context, or nullptr.
void* create_cublas(const Cublas& library);

}  // namespace outboard::cuda
