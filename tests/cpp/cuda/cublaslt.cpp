// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <vector>

#include "stream.h"

/// A simulator of the part of cuBLASLt that the CUDA driver uses, for floats and doubles on the simulator's streams, as
/// strict as NVIDIA's manual about layouts: matrices lie column by column.
namespace {

constexpr int kSuccess = 0, kInvalidValue = 7, kNotSupported = 15;
constexpr int kFloat = 0, kDouble = 1, kInFloat = 68, kInDouble = 70;

struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t leading, offset = 0;
  int32_t batches = 1;
};

struct Operation {
  int compute, scale;
  int32_t transpose_a = 0, transpose_b = 0, epilogue = 1;
  const void* bias = nullptr;
};

struct Preference {
  uint64_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};
};

struct Found {
  uint64_t algorithm[8];
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

template <typename T>
int store(T& target, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return kInvalidValue;
  std::memcpy(&target, value, bytes);
  return kSuccess;
}

/// op(A) op(B) and D have matching sizes, and no column is longer than its leading dimension.
bool fits(const Operation& operation, const Layout& a, const Layout& b, const Layout& d) {
  const uint64_t m = operation.transpose_a != 0 ? a.columns : a.rows,
                 k = operation.transpose_a != 0 ? a.rows : a.columns;
  const uint64_t k_of_b = operation.transpose_b != 0 ? b.columns : b.rows;
  const uint64_t n = operation.transpose_b != 0 ? b.rows : b.columns;
  for (const Layout* each : {&a, &b, &d}) {
    if (static_cast<uint64_t>(each->leading) < each->rows || each->type != d.type || each->batches != d.batches) {
      return false;
    }
  }
  const bool types = (d.type == kFloat && operation.compute == kInFloat && operation.scale == kFloat) ||
                     (d.type == kDouble && operation.compute == kInDouble && operation.scale == kDouble);
  return types && m == d.rows && n == d.columns && k == k_of_b;
}

template <typename T>
void multiply(const Operation& operation, const Layout& a, const T* a_data, const Layout& b, const T* b_data,
              const Layout& d, T* d_data) {
  const auto at = [](const Layout& layout, bool transposed, uint64_t i, uint64_t j) {
    return transposed ? j + i * static_cast<uint64_t>(layout.leading) : i + j * static_cast<uint64_t>(layout.leading);
  };
  const uint64_t inner = operation.transpose_a != 0 ? a.rows : a.columns;
  for (uint64_t j = 0; j < d.columns; ++j) {
    for (uint64_t i = 0; i < d.rows; ++i) {
      double sum = operation.epilogue == 4 ? static_cast<double>(static_cast<const T*>(operation.bias)[i]) : 0;
      for (uint64_t k = 0; k < inner; ++k) {
        sum += static_cast<double>(a_data[at(a, operation.transpose_a != 0, i, k)]) *
               static_cast<double>(b_data[at(b, operation.transpose_b != 0, k, j)]);
      }
      d_data[at(d, false, i, j)] = static_cast<T>(sum);
    }
  }
}

template <typename T>
void multiply_all(const Operation& operation, const Layout& a, const void* a_data, const Layout& b, const void* b_data,
                  const Layout& d, void* d_data) {
  for (int32_t batch = 0; batch < d.batches; ++batch) {
    multiply(operation, a, static_cast<const T*>(a_data) + batch * a.offset, b,
             static_cast<const T*>(b_data) + batch * b.offset, d, static_cast<T*>(d_data) + batch * d.offset);
  }
}

}  // namespace

#define OUTBOARD_EXPORT extern "C" __attribute__((visibility("default")))

OUTBOARD_EXPORT size_t cublasLtGetVersion() { return 130100; }
OUTBOARD_EXPORT int cublasLtCreate(void** handle) {
  static int one;
  *handle = &one;
  return kSuccess;
}
OUTBOARD_EXPORT int cublasLtMatmulDescCreate(void** made, int compute, int scale) {
  *made = new Operation{compute, scale};
  return kSuccess;
}
OUTBOARD_EXPORT int cublasLtMatmulDescSetAttribute(void* handle, int attribute, const void* value, size_t bytes) {
  auto& operation = *static_cast<Operation*>(handle);
  switch (attribute) {
    case 3:
      return store(operation.transpose_a, value, bytes);
    case 4:
      return store(operation.transpose_b, value, bytes);
    case 7:
      return store(operation.epilogue, value, bytes);
    case 8:
      return store(operation.bias, value, bytes);
    default:
      return kInvalidValue;
  }
}
OUTBOARD_EXPORT int cublasLtMatmulDescDestroy(void* handle) {
  delete static_cast<Operation*>(handle);
  return kSuccess;
}
OUTBOARD_EXPORT int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns,
                                               int64_t leading) {
  *made = new Layout{type, rows, columns, leading};
  return kSuccess;
}
OUTBOARD_EXPORT int cublasLtMatrixLayoutSetAttribute(void* handle, int attribute, const void* value, size_t bytes) {
  auto& layout = *static_cast<Layout*>(handle);
  if (attribute == 5) return store(layout.batches, value, bytes);
  return attribute == 6 ? store(layout.offset, value, bytes) : kInvalidValue;
}
OUTBOARD_EXPORT int cublasLtMatrixLayoutDestroy(void* handle) {
  delete static_cast<Layout*>(handle);
  return kSuccess;
}
OUTBOARD_EXPORT int cublasLtMatmulPreferenceCreate(void** made) {
  *made = new Preference;
  return kSuccess;
}
OUTBOARD_EXPORT int cublasLtMatmulPreferenceSetAttribute(void* handle, int attribute, const void* value, size_t bytes) {
  auto& preference = *static_cast<Preference*>(handle);
  if (attribute == 1) return store(preference.workspace, value, bytes);
  if (attribute < 5 || attribute > 8) return kInvalidValue;
  return store(preference.alignment[attribute - 5], value, bytes);
}
OUTBOARD_EXPORT int cublasLtMatmulPreferenceDestroy(void* handle) {
  delete static_cast<Preference*>(handle);
  return kSuccess;
}
OUTBOARD_EXPORT int cublasLtMatmulAlgoGetHeuristic(void*, void* operation, void* a, void* b, void* c, void* d,
                                                   void* given, int, Found* found, int* count) {
  const bool right = c == d && fits(*static_cast<Operation*>(operation), *static_cast<Layout*>(a),
                                    *static_cast<Layout*>(b), *static_cast<Layout*>(d));
  const auto& preference = *static_cast<Preference*>(given);
  for (const uint32_t alignment : preference.alignment) found->algorithm[0] = found->algorithm[0] * 1000 + alignment;
  found->workspace = preference.workspace;
  found->status = right ? kSuccess : kNotSupported;
  *count = right ? 1 : 0;
  return right ? kSuccess : kNotSupported;
}
OUTBOARD_EXPORT int cublasLtMatmul(void*, void* operation, const void* alpha, const void* a, void* a_layout,
                                   const void* b, void* b_layout, const void* beta, const void* c, void*, void* d,
                                   void* d_layout, const uint64_t* algorithm, void* workspace, size_t bytes,
                                   void* stream) {
  const Operation how = *static_cast<Operation*>(operation);
  const Layout left = *static_cast<Layout*>(a_layout), right = *static_cast<Layout*>(b_layout),
               target = *static_cast<Layout*>(d_layout);
  const bool in_double = how.scale == kDouble;
  const double factor = in_double ? *static_cast<const double*>(alpha) : double{*static_cast<const float*>(alpha)};
  const double old = in_double ? *static_cast<const double*>(beta) : double{*static_cast<const float*>(beta)};
  if (factor != 1 || old != 0 || c != d || !fits(how, left, right, target)) return kInvalidValue;
  if (workspace == nullptr || bytes < (size_t{32} << 20) || algorithm[0] == 0) return kInvalidValue;
  uint64_t alignments = algorithm[0];
  for (const void* each : {d, static_cast<void*>(d), const_cast<void*>(b), const_cast<void*>(a)}) {
    if (reinterpret_cast<uint64_t>(each) % (alignments % 1000) != 0) return kInvalidValue;
    alignments /= 1000;
  }
  reinterpret_cast<simulator::Stream*>(stream)->put([=] {
    if (in_double) return multiply_all<double>(how, left, a, right, b, target, d);
    multiply_all<float>(how, left, a, right, b, target, d);
  });
  return kSuccess;
}
