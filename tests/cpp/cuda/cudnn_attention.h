// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "cudnn_objects.h"

/// Attention of the simulator of cuDNN: one operation, with a softmax of its own and, if it is causal, a graph of its
/// own in which scores outside a band are replaced.
namespace simulator::cudnn {

inline bool is_number(const Tensor& tensor) {
  return tensor.is_by_value && !tensor.is_virtual && tensor.type == kFloat && tensor.count() == 1 &&
         tensor.dims.size() == 4;
}

/// What stands between two operations: float, packed.
inline bool is_between(const Tensor& tensor) {
  return tensor.is_virtual && !tensor.is_by_value && tensor.type == kFloat && tensor.packed();
}

/// Replaces scores of columns that come after their row.
struct Band {
  explicit Band(const Object& object)
      : x(object.part(3000)), other(object.part(3005)), y(object.part(3006)), comparison(object.one<int>(3007)) {}

  int problem() const {
    constexpr int kGreaterOrEqual = 303;
    if (comparison != kGreaterOrEqual) return kNotSupported;
    return is_between(x) && is_between(y) && is_number(other) && x.dims == y.dims && x.id != y.id ? kSuccess
                                                                                                  : kBadParam;
  }

  Tensor x, other, y;
  int comparison;
};

struct Softmax {
  explicit Softmax(const Object& object) : x(object.part(3100)), y(object.part(3101)) {
    if (object.values.count(3102) != 0) statistics.emplace(object.part(3102));
  }

  int problem() const {
    if (!is_between(x) || !is_between(y) || x.dims != y.dims || x.id == y.id) return kBadParam;
    if (!statistics) return kSuccess;
    std::vector<int64_t> rows = x.dims;
    rows.back() = 1;
    return statistics->type == kFloat && !statistics->is_virtual && statistics->dims == rows ? kSuccess : kBadParam;
  }

  Tensor x, y;
  std::optional<Tensor> statistics;
};

/// An attention by value, so that nothing that is destroyed is needed when it runs.
struct Attention {
  explicit Attention(const Object& object)
      : query(object.part(2800)), key(object.part(2801)), value(object.part(2802)), out(object.part(2803)) {
    if (object.values.count(2805) != 0) scale.emplace(object.part(2805));
    if (object.values.count(2814) != 0) softmax.emplace(object.part(2814));
    if (object.values.count(2811) == 0) return;
    const Object& graph = object.part(2811);
    band.emplace(*graph.one<const Object*>(801));
    is_joined = object.one<int64_t>(2812) == band->x.id && object.one<int64_t>(2813) == band->y.id;
  }

  int problem() const {
    if (scale && !is_number(*scale)) return kBadParam;
    if (!is_joined) return kBadParam;
    for (const Tensor* each : {&query, &key, &value, &out}) {
      if (each->dims.size() != 4 || each->is_virtual || each->type != query.type) return kBadParam;
      if (each->type != kHalf && each->type != kBfloat16) return kNotSupported;
      if (!has_vectors(*each)) return kNotSupported;
    }
    const auto &q = query.dims, &k = key.dims, &v = value.dims;
    if (q[0] != k[0] || q[0] != v[0] || k[1] != v[1] || q[1] % k[1] != 0 || q[3] != k[3] || k[2] != v[2])
      return kShapeMismatch;
    if (out.dims != std::vector<int64_t>{q[0], q[1], q[2], v[3]}) return kShapeMismatch;
    const std::vector<int64_t> scores{q[0], q[1], q[2], k[2]};
    if (softmax && softmax->x.dims != scores) return kShapeMismatch;
    return band && band->x.dims != scores ? kShapeMismatch : kSuccess;
  }

  /// What kernels that read and write vectors need, and real ones do not ask about.
  static bool has_vectors(const Tensor& tensor) {
    if (tensor.alignment % 16 != 0 || tensor.strides[3] != 1 || tensor.dims[3] % 8 != 0) return false;
    return std::all_of(tensor.strides.begin(), tensor.strides.begin() + 3,
                       [](int64_t stride) { return stride % 8 == 0; });
  }

  bool has_engine() const { return query.dims[3] <= 128 && value.dims[3] <= 128; }

  /// What has an address.
  std::map<int64_t, Tensor> memory() const {
    std::map<int64_t, Tensor> made;
    for (const Tensor* each : {&query, &key, &value, &out}) made.emplace(each->id, *each);
    if (scale) made.emplace(scale->id, *scale);
    if (softmax && softmax->statistics) made.emplace(softmax->statistics->id, *softmax->statistics);
    if (band) made.emplace(band->other.id, band->other);
    return made;
  }

  /// Numbers by value are read when a plan is executed, not when it runs.
  void read_numbers(const Pointers& data) {
    if (scale) factor = double{*static_cast<const float*>(data.at(scale->id))};
    if (band) outside = double{*static_cast<const float*>(data.at(band->other.id))};
  }

  double score(const std::vector<int64_t>& row, int64_t column, const Pointers& data) const {
    if (band && column > row[2]) return outside;
    const int64_t head = row[1] / (query.dims[1] / key.dims[1]);
    double sum = 0;
    for (int64_t e = 0; e < query.dims[3]; ++e) {
      sum += load(query.type, data.at(query.id), place_of(query, {row[0], row[1], row[2], e})) *
             load(key.type, data.at(key.id), place_of(key, {row[0], head, column, e}));
    }
    return sum * factor;
  }

  void compute(const Pointers& data, bool wrong) const {
    each_index({query.dims[0], query.dims[1], query.dims[2]}, [&](const std::vector<int64_t>& row) {
      std::vector<double> weights;
      for (int64_t j = 0; j < key.dims[2]; ++j) weights.push_back(score(row, j, data));
      const double most = *std::max_element(weights.begin(), weights.end());
      double total = 0;
      for (double& each : weights) total += each = std::exp(each - most);
      const int64_t head = row[1] / (query.dims[1] / value.dims[1]);
      for (int64_t e = 0; e < value.dims[3]; ++e) {
        double sum = wrong ? 1 : 0;
        for (size_t j = 0; j < weights.size(); ++j) {
          const int64_t place = place_of(value, {row[0], head, static_cast<int64_t>(j), e});
          sum += weights[j] / total * load(value.type, data.at(value.id), place);
        }
        store(out.type, data.at(out.id), place_of(out, {row[0], row[1], row[2], e}), sum);
      }
      if (!softmax || !softmax->statistics) return;
      const Tensor& statistics = *softmax->statistics;
      const int64_t place = place_of(statistics, {row[0], row[1], row[2], 0});
      store(kFloat, data.at(statistics.id), place, most + std::log(total));
    });
  }

  Tensor query, key, value, out;
  std::optional<Tensor> scale;
  std::optional<Softmax> softmax;
  std::optional<Band> band;
  bool is_joined = true;
  double factor = 1, outside = -std::numeric_limits<double>::infinity();
};

}  // namespace simulator::cudnn
