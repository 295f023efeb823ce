// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/api.h"
#include "outboard/driver.h"

namespace outboard::cuda {

class Cublas;
class Cudnn;
class CudnnHandle;

/// What became of a call of a library function.
struct Outcome {
  ob_status status = OB_OK;
  std::string text;                // what is wrong: "cublasLtMatmul returned 14"
  CUresult memory = CUDA_SUCCESS;  // what became of reserving the workspace
};

/// Memory for intermediate results of a stream's library functions, which use it one after the other. The device's
/// context is current where it is used.
class Workspace {
 public:
  /// At least so many bytes. Smaller memory is given back first; if that was all there is, nothing is left.
  CUresult reserve(size_t bytes);
  /// Waits for the work that uses it.
  void release();
  CUdeviceptr address() const { return address_; }

 private:
  CUdeviceptr address_ = 0;
  size_t bytes_ = 0;
};

/// One operator of a library of NVIDIA's on one device, with what it prepared for each set of sizes, strides and
/// alignments. Thread-safe. The device's context is current where it is used.
class Function {
 public:
  /// Bytes that a call may always use for intermediate results.
  static constexpr size_t kWorkspace = size_t{32} << 20;

  virtual ~Function() = default;
  /// Whether the library can do it for these operands.
  virtual bool prepare(const std::vector<ob_operand>& operands) = 0;
  /// Submits it, with the workspace of its stream.
  virtual Outcome run(const std::vector<ob_operand>& operands, Workspace& workspace, CUstream stream) = 0;
};

/// What a function prepared, by sets of sizes, of which it remembers so many.
template <typename Plan>
class Plans {
 public:
  /// The plan of a key. `make` makes it, or returns nullptr if that is not possible.
  template <typename Make>
  Plan* of(const std::string& key, const Make& make) {
    const auto known = plans_.find(key);
    if (known != plans_.end()) return known->second.get();
    std::unique_ptr<Plan> made = make();
    if (made == nullptr) return nullptr;
    if (plans_.size() == kMost) plans_.clear();
    return plans_.emplace(key, std::move(made)).first->second.get();
  }

 private:
  static constexpr size_t kMost = 256;
  std::unordered_map<std::string, std::unique_ptr<Plan>> plans_;
};

inline bool is_tensor(const ob_operand& operand) { return operand.kind == OB_OPERAND_TENSOR; }

/// How an address is aligned, up to `most` bytes, beyond which the library does not care. An address that is not known
/// yet (0) counts as aligned.
uint32_t alignment_of(ob_ptr address, uint32_t most);

/// Sizes, strides and alignments, up to `most` bytes, as a key for what is prepared for them.
std::string key_of(const std::vector<ob_operand>& operands, uint32_t most);

/// The libraries that were found when the driver started: cuBLASLt for products, cuDNN for the rest.
struct Libraries {
  const Cublas* products = nullptr;
  const Cudnn* cudnn = nullptr;
  std::string without_cudnn;  // why there is none

  static Libraries load();
  /// Names and versions; empty if there is none.
  std::string name() const;
};

/// Functions of the libraries for one device, by what they serve. Thread-safe.
class FunctionTable {
 public:
  explicit FunctionTable(const Libraries& libraries);
  ~FunctionTable();
  FunctionTable(const FunctionTable&) = delete;
  FunctionTable& operator=(const FunctionTable&) = delete;

  std::string name() const { return libraries_.name(); }
  /// nullptr if there is none, and `why` says so. Lives as long as the table. The device's context must be current.
  Function* find(const std::string& name, const std::vector<ob_operand>& operands, std::string* why);

 private:
  std::unique_ptr<Function> make(const std::string& name, std::string* why);
  std::unique_ptr<Function> make_by_cudnn(const std::string& name, std::string* why);
  Function* known(const std::string& name, const std::vector<ob_operand>& operands, std::string* why);

  const Libraries& libraries_;
  std::mutex mutex_;  // guards what follows
  void* products_ = nullptr;
  std::unique_ptr<CudnnHandle> cudnn_;
  std::unordered_map<std::string, std::unique_ptr<Function>> functions_;
};

}  // namespace outboard::cuda
