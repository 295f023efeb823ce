// SPDX-License-Identifier: Apache-2.0
#include "cuda/cublas.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "common/symbols.h"

namespace outboard::cuda {

/// The part of cuBLASLt that is used (cublasLt.h). Descriptions are pointers; statuses, types and attributes numbers.
struct CublasApi {
  struct Algorithm {
    uint64_t data[8];
  };
  struct Found {
    Algorithm algorithm;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
  };

  size_t (*cublasLtGetVersion)();
  int (*cublasLtCreate)(void** handle);
  int (*cublasLtMatmulDescCreate)(void** operation, int compute_type, int scale_type);
  int (*cublasLtMatmulDescSetAttribute)(void* operation, int attribute, const void* value, size_t bytes);
  int (*cublasLtMatmulDescDestroy)(void* operation);
  int (*cublasLtMatrixLayoutCreate)(void** layout, int type, uint64_t rows, uint64_t columns, int64_t leading);
  int (*cublasLtMatrixLayoutSetAttribute)(void* layout, int attribute, const void* value, size_t bytes);
  int (*cublasLtMatrixLayoutDestroy)(void* layout);
  int (*cublasLtMatmulPreferenceCreate)(void** preference);
  int (*cublasLtMatmulPreferenceSetAttribute)(void* preference, int attribute, const void* value, size_t bytes);
  int (*cublasLtMatmulPreferenceDestroy)(void* preference);
  int (*cublasLtMatmulAlgoGetHeuristic)(void* handle, void* operation, void* a, void* b, void* c, void* d,
                                        void* preference, int asked, Found* found, int* count);
  int (*cublasLtMatmul)(void* handle, void* operation, const void* alpha, const void* a, void* a_layout, const void* b,
                        void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                        const Algorithm* algorithm, void* workspace, size_t workspace_bytes, CUstream stream);
};

namespace {

constexpr int kSuccess = 0;
enum OperationAttribute : int { kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8 };
enum LayoutAttribute : int { kBatchCount = 5, kBatchOffset = 6 };
enum PreferenceAttribute : int { kMostWorkspace = 1, kAlignmentA = 5 };  // B, C and D follow
constexpr int32_t kTranspose = 1, kAddBias = 4;
/// Addresses are looked at up to this multiple.
constexpr uint32_t kAlignment = 256;

/// cuBLAS's numbers for a dtype of PyTorch's: of its elements, what is computed in, and of factors.
struct Types {
  int element, compute, scale;
  uint32_t bytes;
};

std::optional<Types> types_of(uint32_t dtype) {
  constexpr int kFloat = 0, kDouble = 1, kHalf = 2, kBfloat16 = 14, kInFloat = 68, kInDouble = 70;
  switch (dtype) {
    case 5:
      return Types{kHalf, kInFloat, kFloat, 2};
    case 6:
      return Types{kFloat, kInFloat, kFloat, 4};
    case 7:
      return Types{kDouble, kInDouble, kDouble, 8};
    case 15:
      return Types{kBfloat16, kInFloat, kFloat, 2};
    default:
      return std::nullopt;
  }
}

/// A matrix, or a batch of them, as cuBLAS knows them: column by column. A matrix that lies row by row is its own
/// transpose.
struct Matrix {
  int64_t rows, columns, leading;  // as it lies
  bool transposed;                 // whether that is the transpose of what is meant
  int64_t batches = 1, batch_offset = 0;
  size_t operand = 0;

  /// nullopt if neither rows nor columns are dense.
  static std::optional<Matrix> of(const ob_operand& tensor, size_t operand) {
    if (!is_tensor(tensor) || tensor.count < 2 || tensor.count > 3) return std::nullopt;
    const uint32_t row = tensor.count - 2, column = tensor.count - 1;
    const int64_t rows = tensor.sizes[row], columns = tensor.sizes[column];
    Matrix made{};
    if (tensor.strides[column] == 1 || columns == 1) {
      made = {columns, rows, std::max(tensor.strides[row], columns), true};
    } else if (tensor.strides[row] == 1 || rows == 1) {
      made = {rows, columns, std::max(tensor.strides[column], rows), false};
    } else {
      return std::nullopt;
    }
    made.batches = tensor.count == 3 ? tensor.sizes[0] : 1;
    made.batch_offset = tensor.count == 3 ? tensor.strides[0] : 0;
    made.operand = operand;
    return made;
  }

  Matrix of_transpose() const {
    Matrix made = *this;
    made.transposed = !transposed;
    return made;
  }
};

/// target = left @ right, and a row added to each row.
struct Problem {
  Matrix left, right, target;
  std::optional<size_t> bias;  // an operand
  Types types;
};

std::optional<Problem> problem_of(const std::string& name, const std::vector<ob_operand>& operands) {
  const bool plain = (name == "aten::mm" || name == "aten::bmm") && operands.size() == 3;
  const bool with_row = name == "aten::addmm" && operands.size() == 6;
  const bool linear = name == "aten::linear" && operands.size() == 4;
  if (!plain && !with_row && !linear) return std::nullopt;
  const size_t first = with_row ? 1 : 0, last = operands.size() - 1;
  for (const size_t factor : {size_t{3}, size_t{4}}) {  // beta and alpha
    if (!with_row) break;
    const ob_operand& operand = operands[factor];
    if ((operand.kind == OB_OPERAND_NUMBER ? operand.number : static_cast<double>(operand.integer)) != 1) {
      return std::nullopt;
    }
  }
  std::optional<size_t> bias;
  if (with_row) bias = 0;
  if (linear && is_tensor(operands[2])) bias = 2;
  if (bias && (operands[*bias].count != 1 || operands[*bias].strides[0] != 1)) return std::nullopt;
  const std::optional<Matrix> left = Matrix::of(operands[first], first);
  std::optional<Matrix> right = Matrix::of(operands[first + 1], first + 1);
  const std::optional<Matrix> target = Matrix::of(operands[last], last);
  const std::optional<Types> types = types_of(operands[last].dtype);
  if (!left || !right || !target || !types || !target->transposed) return std::nullopt;  // written row by row
  if (linear) right = right->of_transpose();
  for (const ob_operand& operand : operands) {
    if (is_tensor(operand) && operand.dtype != operands[last].dtype) return std::nullopt;
  }
  return Problem{*left, *right, *target, bias, *types};
}

void* open_library() {
  const char* const chosen = std::getenv("OUTBOARD_CUDA_CUBLASLT");
  if (chosen != nullptr && *chosen != '\0') return dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

}  // namespace

/// cuBLASLt's objects for one set of sizes. As cuBLAS counts columns, target' = right' @ left' is computed.
struct Product::Plan {
  explicit Plan(const CublasApi& api_) : api(api_) {}
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (void* layout : {a, b, d}) {
      if (layout != nullptr) api.cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation != nullptr) api.cublasLtMatmulDescDestroy(operation);
  }

  bool describe(void*& layout, const Matrix& matrix, int64_t batches) const {
    if (api.cublasLtMatrixLayoutCreate(&layout, problem->types.element, static_cast<uint64_t>(matrix.rows),
                                       static_cast<uint64_t>(matrix.columns), matrix.leading) != kSuccess) {
      return false;
    }
    if (batches == 1) return true;
    const auto count = static_cast<int32_t>(batches);
    return api.cublasLtMatrixLayoutSetAttribute(layout, kBatchCount, &count, sizeof(count)) == kSuccess &&
           api.cublasLtMatrixLayoutSetAttribute(layout, kBatchOffset, &matrix.batch_offset, sizeof(int64_t)) ==
               kSuccess;
  }

  bool set(int attribute, const void* value, size_t bytes) const {
    return api.cublasLtMatmulDescSetAttribute(operation, attribute, value, bytes) == kSuccess;
  }

  bool make(const Problem& wanted, const std::vector<ob_operand>& operands, void* handle) {
    problem = wanted;
    const int64_t batches = wanted.target.batches;
    if (api.cublasLtMatmulDescCreate(&operation, wanted.types.compute, wanted.types.scale) != kSuccess) return false;
    // The transposes are multiplied: what lies as its transpose is right as it is.
    if (!wanted.right.transposed && !set(kTransposeA, &kTranspose, sizeof(kTranspose))) return false;
    if (!wanted.left.transposed && !set(kTransposeB, &kTranspose, sizeof(kTranspose))) return false;
    if (wanted.bias && !set(kEpilogue, &kAddBias, sizeof(kAddBias))) return false;
    if (wanted.bias && !set_bias(operands)) return false;
    if (!describe(a, wanted.right, batches) || !describe(b, wanted.left, batches)) return false;
    return describe(d, wanted.target, batches) && choose(operands, handle);
  }

  /// Algorithms may depend on how it is aligned.
  bool set_bias(const std::vector<ob_operand>& operands) const {
    return set(kBiasPointer, &operands[*problem->bias].data, sizeof(ob_ptr));
  }

  /// The algorithm that cuBLAS expects to be fastest.
  bool choose(const std::vector<ob_operand>& operands, void* handle) {
    void* preference = nullptr;
    if (api.cublasLtMatmulPreferenceCreate(&preference) != kSuccess) return false;
    const size_t workspace = kWorkspace;
    bool right =
        api.cublasLtMatmulPreferenceSetAttribute(preference, kMostWorkspace, &workspace, sizeof(workspace)) == kSuccess;
    int attribute = kAlignmentA;
    for (const Matrix* matrix : {&problem->right, &problem->left, &problem->target, &problem->target}) {
      const uint32_t alignment = alignment_of(operands[matrix->operand].data, kAlignment);
      right = right && api.cublasLtMatmulPreferenceSetAttribute(preference, attribute++, &alignment,
                                                                sizeof(alignment)) == kSuccess;
    }
    CublasApi::Found found{};
    int count = 0;
    right = right && api.cublasLtMatmulAlgoGetHeuristic(handle, operation, a, b, d, d, preference, 1, &found, &count) ==
                         kSuccess;
    api.cublasLtMatmulPreferenceDestroy(preference);
    algorithm = found.algorithm;
    return right && count == 1 && found.status == kSuccess;
  }

  const CublasApi& api;
  std::optional<Problem> problem;
  void* operation = nullptr;
  void *a = nullptr, *b = nullptr, *d = nullptr;
  CublasApi::Algorithm algorithm{};
};

Cublas* Cublas::load() {
  void* const library = open_library();
  if (library == nullptr) return nullptr;
  auto api = std::make_unique<CublasApi>();
  bool whole = true;
#define OUTBOARD_FIND(function) whole = whole && common::find_symbol(library, #function, api->function);
  OUTBOARD_FIND(cublasLtGetVersion)
  OUTBOARD_FIND(cublasLtCreate)
  OUTBOARD_FIND(cublasLtMatmulDescCreate)
  OUTBOARD_FIND(cublasLtMatmulDescSetAttribute)
  OUTBOARD_FIND(cublasLtMatmulDescDestroy)
  OUTBOARD_FIND(cublasLtMatrixLayoutCreate)
  OUTBOARD_FIND(cublasLtMatrixLayoutSetAttribute)
  OUTBOARD_FIND(cublasLtMatrixLayoutDestroy)
  OUTBOARD_FIND(cublasLtMatmulPreferenceCreate)
  OUTBOARD_FIND(cublasLtMatmulPreferenceSetAttribute)
  OUTBOARD_FIND(cublasLtMatmulPreferenceDestroy)
  OUTBOARD_FIND(cublasLtMatmulAlgoGetHeuristic)
  OUTBOARD_FIND(cublasLtMatmul)
#undef OUTBOARD_FIND
  return whole ? new Cublas(std::move(api)) : nullptr;
}

Cublas::Cublas(std::unique_ptr<CublasApi> api) : api_(std::move(api)) {
  name_ = "cuBLASLt " + std::to_string(api_->cublasLtGetVersion());
}

void* create_cublas(const Cublas& library) {
  void* handle = nullptr;
  return library.api().cublasLtCreate(&handle) == kSuccess ? handle : nullptr;
}

Product::Product(const Cublas& library, void* handle, std::string name)
    : library_(library), handle_(handle), name_(std::move(name)) {}
Product::~Product() = default;

Product::Plan* Product::plan_for(const std::vector<ob_operand>& operands) {
  return plans_.of(key_of(operands, kAlignment), [&]() -> std::unique_ptr<Plan> {
    const std::optional<Problem> problem = problem_of(name_, operands);
    if (!problem) return nullptr;
    auto made = std::make_unique<Plan>(library_.api());
    return made->make(*problem, operands, handle_) ? std::move(made) : nullptr;
  });
}

bool Product::prepare(const std::vector<ob_operand>& operands) {
  const std::lock_guard lock(mutex_);
  return plan_for(operands) != nullptr;
}

Outcome Product::run(const std::vector<ob_operand>& operands, Workspace& workspace, CUstream stream) {
  const std::lock_guard lock(mutex_);
  Plan* const plan = plan_for(operands);
  if (plan == nullptr) return {OB_UNSUPPORTED, "cuBLASLt cannot compute " + name_ + " for these sizes and addresses"};
  const Problem& problem = *plan->problem;
  if (const CUresult result = workspace.reserve(kWorkspace); result != CUDA_SUCCESS) return {OB_OK, "", result};
  if (problem.bias && !plan->set_bias(operands)) return {OB_INTERNAL, "cuBLASLt refused the address of a bias"};
  const auto at = [&](const Matrix& matrix) { return reinterpret_cast<void*>(operands[matrix.operand].data); };
  constexpr float kOne = 1, kNothing = 0;
  constexpr double kOneInDouble = 1, kNothingInDouble = 0;
  const bool in_double = problem.types.bytes == sizeof(double);
  const void* const alpha = in_double ? static_cast<const void*>(&kOneInDouble) : &kOne;
  const void* const beta = in_double ? static_cast<const void*>(&kNothingInDouble) : &kNothing;
  void* const target = at(problem.target);
  const int status = library_.api().cublasLtMatmul(
      handle_, plan->operation, alpha, at(problem.right), plan->a, at(problem.left), plan->b, beta, target, plan->d,
      target, plan->d, &plan->algorithm, reinterpret_cast<void*>(workspace.address()), kWorkspace, stream);
  if (status == kSuccess) return {};
  return {OB_INTERNAL, "cublasLtMatmul returned " + std::to_string(status)};
}

}  // namespace outboard::cuda
