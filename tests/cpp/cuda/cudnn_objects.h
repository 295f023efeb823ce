// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

/// What the simulator of cuDNN (cudnn.cpp) describes operations by: descriptors, tensors and their numbers.
namespace simulator::cudnn {

constexpr int kSuccess = 0, kNotInitialized = 1001, kBadParam = 2000, kMisaligned = 2003, kNotFinalized = 2004;
constexpr int kShapeMismatch = 2008, kAttributeType = 2010, kNotSupported = 3000, kNoSuchPattern = 3001;
constexpr int kExecutionFailed = 5000;
constexpr int kFloat = 0, kDouble = 1, kHalf = 2, kBfloat16 = 9;

enum Kind {
  kPointwise,
  kConvolution,
  kEngine,
  kConfig,
  kHeuristics,
  kPlan,
  kForward = 10,
  kFilter,
  kData,
  kPointwiseOperation
};
enum MoreKinds { kGraph = 15, kPack, kTensor, kAttention = 41, kBand = 44, kSoftmax };

struct Object {
  explicit Object(int kind_) : kind(kind_) {}

  const int kind;
  bool final = false;
  std::map<int, std::vector<char>> values;
  // Of what heuristics find:
  int engine = -1;
  const Object* graph = nullptr;

  template <typename T>
  std::vector<T> all(int attribute) const {
    const auto found = values.find(attribute);
    if (found == values.end()) return {};
    std::vector<T> made(found->second.size() / sizeof(T));
    std::memcpy(made.data(), found->second.data(), found->second.size());
    return made;
  }
  template <typename T>
  T one(int attribute) const {
    const std::vector<T> found = all<T>(attribute);
    return found.empty() ? T{} : found[0];
  }
  const Object& part(int attribute) const { return *one<const Object*>(attribute); }
};

inline int64_t size_of(int type) { return type == kDouble ? 8 : type == kFloat ? 4 : 2; }

/// A tensor, as it was described.
struct Tensor {
  explicit Tensor(const Object& object)
      : id(object.one<int64_t>(906)),
        type(object.one<int>(901)),
        alignment(object.one<int64_t>(900)),
        is_virtual(object.one<char>(907) != 0),
        is_by_value(object.one<char>(908) != 0),
        dims(object.all<int64_t>(902)),
        strides(object.all<int64_t>(903)) {}

  int64_t last() const {
    int64_t place = 0;
    for (size_t i = 0; i < dims.size(); ++i) place += (dims[i] - 1) * strides[i];
    return place;
  }
  int64_t count() const {
    int64_t product = 1;
    for (const int64_t each : dims) product *= each;
    return product;
  }
  bool packed() const { return last() + 1 == count(); }
  bool channels_last() const { return packed() && dims[1] > 1 && strides[1] == 1; }

  int64_t id;
  int type;
  int64_t alignment;
  bool is_virtual, is_by_value;
  std::vector<int64_t> dims, strides;
};

inline double from_half(uint16_t bits) {
  const double sign = (bits >> 15) != 0 ? -1 : 1;
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

/// Of what is not too large for it.
inline uint16_t to_half(double value) {
  const int sign = value < 0 ? 32768 : 0;
  if (std::fabs(value) < std::ldexp(1, -14))
    return static_cast<uint16_t>(sign + static_cast<int>(std::nearbyint(std::ldexp(std::fabs(value), 24))));
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);
  auto scaled = static_cast<int>(std::nearbyint(std::ldexp(fraction, 11)));  // 1024 to 2048
  if (scaled == 2048) {
    scaled = 1024;
    ++exponent;
  }
  return static_cast<uint16_t>(sign + ((exponent + 14) << 10) + (scaled - 1024));
}

inline double load(int type, const void* data, int64_t place) {
  if (type == kDouble) return static_cast<const double*>(data)[place];
  if (type == kFloat) return double{static_cast<const float*>(data)[place]};
  const uint16_t bits = static_cast<const uint16_t*>(data)[place];
  if (type == kHalf) return from_half(bits);
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return double{value};
}

inline void store(int type, void* data, int64_t place, double value) {
  if (type == kDouble) {
    static_cast<double*>(data)[place] = value;
  } else if (type == kFloat) {
    static_cast<float*>(data)[place] = static_cast<float>(value);
  } else if (type == kHalf) {
    static_cast<uint16_t*>(data)[place] = to_half(value);
  } else {
    const auto narrow = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &narrow, sizeof(bits));
    static_cast<uint16_t*>(data)[place] = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

/// Calls a function for each index of a box.
template <typename Function>
void each_index(const std::vector<int64_t>& dims, const Function& function) {
  std::vector<int64_t> index(dims.size(), 0);
  for (;;) {
    function(index);
    size_t i = dims.size();
    while (i > 0 && ++index[i - 1] == dims[i - 1]) index[--i] = 0;
    if (i == 0) return;
  }
}

inline int64_t place_of(const Tensor& tensor, const std::vector<int64_t>& index) {
  int64_t place = 0;
  for (size_t i = 0; i < index.size(); ++i) place += (tensor.dims[i] == 1 ? 0 : index[i]) * tensor.strides[i];
  return place;
}

/// Addresses of tensors, by id.
using Pointers = std::map<int64_t, void*>;

}  // namespace simulator::cudnn
