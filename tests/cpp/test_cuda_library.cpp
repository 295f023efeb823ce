// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "cuda_fixture.h"

/// Library functions of the CUDA driver on simulators of cuBLASLt and cuDNN (cuda/cublaslt.cpp, cuda/cudnn.cpp): what
/// they are asked for, and what is made of their answers. It says nothing of GPUs.
namespace {

using namespace cuda_test;

// PyTorch's numbers of dtypes.
constexpr uint32_t kHalf = 5, kFloat = 6, kDouble = 7, kBfloat16 = 15;

uint64_t bytes_of(uint32_t dtype) { return dtype == kDouble ? 8 : dtype == kHalf || dtype == kBfloat16 ? 2 : 4; }

/// The bits of a number that half precision has.
uint16_t to_half(float value) {
  if (value == 0) return 0;
  int exponent = 0;
  const float fraction = std::frexp(std::fabs(value), &exponent);
  const int bits = static_cast<int>(std::ldexp(fraction, 11)) - 1024;
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | (exponent + 14) << 10 | bits);
}

float from_half(uint16_t bits) {
  if ((bits & 0x7fff) == 0) return 0;
  const float value = std::ldexp(static_cast<float>(1024 + (bits & 1023)), (bits >> 10 & 31) - 25);
  return (bits & 0x8000) != 0 ? -value : value;
}

void store(uint32_t dtype, char* place, float value) {
  const double wide = double{value};
  const uint16_t half = to_half(value);
  if (dtype == kDouble) std::memcpy(place, &wide, 8);
  if (dtype == kHalf) std::memcpy(place, &half, 2);
  if (dtype == kBfloat16) std::memcpy(place, reinterpret_cast<const char*>(&value) + 2, 2);
  if (bytes_of(dtype) == 4) std::memcpy(place, &value, 4);
}

float load(uint32_t dtype, const char* place) {
  double wide = 0;
  float value = 0;
  uint16_t half = 0;
  if (dtype == kDouble) std::memcpy(&wide, place, 8);
  if (dtype == kHalf) std::memcpy(&half, place, 2);
  if (dtype == kBfloat16) std::memcpy(reinterpret_cast<char*>(&value) + 2, place, 2);
  if (bytes_of(dtype) == 4) std::memcpy(&value, place, 4);
  return dtype == kDouble ? static_cast<float>(wide) : dtype == kHalf ? from_half(half) : value;
}

/// Calls a function for each index of a box.
template <typename Function>
void each_index(const std::vector<int64_t>& sizes, const Function& function) {
  std::vector<int64_t> index(sizes.size(), 0);
  for (;;) {
    function(index);
    size_t i = index.size();
    while (i > 0 && ++index[i - 1] == sizes[i - 1]) index[--i] = 0;
    if (i == 0) return;
  }
}

/// A tensor with memory of its own, full of small whole numbers.
struct Tensor {
  Tensor(const Stream& stream, std::vector<int64_t> sizes_, std::vector<int64_t> strides_, uint32_t dtype_ = kFloat)
      : sizes(std::move(sizes_)), strides(std::move(strides_)), dtype(dtype_) {
    int64_t last = 0;
    for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
    values.resize(static_cast<size_t>(last) + 1);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 7 + values.size()) % 11) - 5;
    std::vector<char> content(values.size() * bytes_of(dtype));
    for (size_t i = 0; i < values.size(); ++i) store(dtype, content.data() + i * bytes_of(dtype), values[i]);
    memory = std::make_unique<Memory>(content.size());
    stream.upload(*memory, content.data());
    stream.wait();
  }
  ob_operand operand(bool result = false, bool found = false) const {
    ob_operand made{};
    made.kind = OB_OPERAND_TENSOR;
    made.dtype = dtype;
    made.count = static_cast<uint32_t>(sizes.size());
    made.is_result = result ? 1 : 0;
    made.data = found ? 0 : memory->pointer;
    made.sizes = sizes.data();
    made.strides = strides.data();
    return made;
  }
  void download(const Stream& stream) {
    const std::vector<char> content = stream.download<char>(*memory);
    for (size_t i = 0; i < values.size(); ++i) values[i] = load(dtype, content.data() + i * bytes_of(dtype));
  }
  size_t place(const std::vector<int64_t>& index) const {
    int64_t offset = 0;
    for (size_t i = 0; i < index.size(); ++i) offset += index[i] * strides[i];
    return static_cast<size_t>(offset);
  }
  float at(const std::vector<int64_t>& index) const { return values[place(index)]; }

  std::vector<int64_t> sizes, strides;
  uint32_t dtype;
  std::vector<float> values;
  std::unique_ptr<Memory> memory;
};

ob_operand number(double value) {
  ob_operand made{};
  made.kind = OB_OPERAND_NUMBER;
  made.number = value;
  return made;
}

/// Whether `c` is `a` times `b`, with a row added.
bool is_product(const Stream& stream, const Tensor& a, const Tensor& b, Tensor& c, const Tensor* row) {
  c.download(stream);
  const bool batched = c.sizes.size() == 3;
  const auto element = [&](const Tensor& tensor, int64_t batch, int64_t i, int64_t j) {
    return batched ? tensor.at({batch, i, j}) : tensor.at({i, j});
  };
  const size_t first = batched ? 1 : 0;
  for (int64_t batch = 0; batch < (batched ? c.sizes[0] : 1); ++batch) {
    for (int64_t i = 0; i < c.sizes[first]; ++i) {
      for (int64_t j = 0; j < c.sizes[first + 1]; ++j) {
        float sum = row != nullptr ? row->at({j}) : 0;
        for (int64_t k = 0; k < a.sizes[first + 1]; ++k) sum += element(a, batch, i, k) * element(b, batch, k, j);
        if (element(c, batch, i, j) != sum) return false;
      }
    }
  }
  return true;
}

ob_status call(const Stream& stream, const char* name, std::vector<ob_operand> operands) {
  std::vector<ob_operand> described = operands;
  for (ob_operand& each : described) each.data = 0;
  ob_function function = nullptr;
  const auto count = static_cast<uint32_t>(operands.size());
  const ob_status status = driver().library_find(device(), name, described.data(), count, &function);
  return status == OB_OK ? driver().library_call(stream.handle, function, operands.data(), count) : status;
}

TEST(products_by_cublas) {
  ob_device_properties properties{};
  properties.struct_size = sizeof(properties);
  succeed(driver().device_properties(device(), &properties));
  CHECK(std::string(properties.library) == "cuBLASLt 130100, cuDNN 9.28.1");
  const Stream stream;
  // Each of the factors row by row and column by column, and with rows that are further apart.
  for (const std::vector<int64_t>& left : {std::vector<int64_t>{3, 1}, {1, 2}, {7, 1}, {1, 5}}) {
    for (const std::vector<int64_t>& right : {std::vector<int64_t>{4, 1}, {1, 3}, {9, 1}, {1, 8}}) {
      Tensor a(stream, {2, 3}, left), b(stream, {3, 4}, right), c(stream, {2, 4}, {6, 1});
      succeed(call(stream, "aten::mm", {a.operand(), b.operand(), c.operand(true)}));
      CHECK(is_product(stream, a, b, c, nullptr));
      const Tensor row(stream, {4}, {1});
      succeed(call(stream, "aten::addmm",
                   {row.operand(), a.operand(), b.operand(), number(1), number(1), c.operand(true)}));
      CHECK(is_product(stream, a, b, c, &row));
      CHECK_EQ(
          call(stream, "aten::addmm", {row.operand(), a.operand(), b.operand(), number(2), number(1), c.operand(true)}),
          OB_UNSUPPORTED);
    }
  }
  Tensor a(stream, {5, 2, 3}, {6, 3, 1}), b(stream, {5, 3, 4}, {12, 1, 3}), c(stream, {5, 2, 4}, {8, 4, 1});
  succeed(call(stream, "aten::bmm", {a.operand(), b.operand(), c.operand(true)}));
  CHECK(is_product(stream, a, b, c, nullptr));
  Tensor x(stream, {2, 3}, {3, 1}), weight(stream, {4, 3}, {3, 1}), y(stream, {2, 4}, {4, 1});
  const Tensor bias(stream, {4}, {1}), transposed = [&] {
    Tensor made(stream, {3, 4}, {1, 3});
    made.values = weight.values;
    return made;
  }();
  succeed(call(stream, "aten::linear", {x.operand(), weight.operand(), bias.operand(), y.operand(true)}));
  CHECK(is_product(stream, x, transposed, y, &bias));
  succeed(call(stream, "aten::linear", {x.operand(), weight.operand(), {}, y.operand(true)}));
  CHECK(is_product(stream, x, transposed, y, nullptr));
}

TEST(what_cublas_is_not_asked_for) {
  const Stream stream;
  const Tensor a(stream, {2, 3}, {3, 1}), b(stream, {3, 4}, {4, 1}), c(stream, {2, 4}, {4, 1});
  const Tensor by_columns(stream, {2, 4}, {1, 2}), sparse(stream, {2, 3}, {6, 2}), integers(stream, {2, 3}, {3, 1}, 3);
  CHECK_EQ(call(stream, "aten::mm", {a.operand(), b.operand(), by_columns.operand(true)}), OB_UNSUPPORTED);
  CHECK_EQ(call(stream, "aten::mm", {sparse.operand(), b.operand(), c.operand(true)}), OB_UNSUPPORTED);
  CHECK_EQ(call(stream, "aten::mm", {integers.operand(), b.operand(), c.operand(true)}), OB_UNSUPPORTED);
  CHECK_EQ(call(stream, "aten::conjure", {a.operand(), b.operand(), c.operand(true)}), OB_UNSUPPORTED);
}

TEST(a_library_function_for_other_sizes_and_addresses) {
  const Stream stream;
  Tensor a(stream, {2, 3}, {3, 1}), b(stream, {3, 4}, {4, 1}), c(stream, {2, 4}, {4, 1});
  const std::vector<ob_operand> found{a.operand(false, true), b.operand(false, true), c.operand(true, true)};
  ob_function function = nullptr;
  succeed(driver().library_find(device(), "aten::mm", found.data(), 3, &function));
  Tensor d(stream, {7, 2}, {2, 1}), e(stream, {2, 5}, {5, 1}), f(stream, {7, 5}, {5, 1});
  const std::vector<ob_operand> larger{d.operand(), e.operand(), f.operand(true)};
  succeed(driver().library_call(stream.handle, function, larger.data(), 3));
  CHECK(is_product(stream, d, e, f, nullptr));
  std::vector<ob_operand> shifted{a.operand(), b.operand(), c.operand(true)};
  const std::vector<int64_t> one_row{1, 3}, one_row_of_four{1, 4};
  shifted[0].data += 3 * sizeof(float);  // the second row, at an odd address
  shifted[0].sizes = one_row.data();
  shifted[2].sizes = one_row_of_four.data();
  succeed(driver().library_call(stream.handle, function, shifted.data(), 3));
  const std::vector<float> made = stream.download<float>(*c.memory);
  for (int64_t j = 0; j < 4; ++j) {
    float sum = 0;
    for (int64_t k = 0; k < 3; ++k) sum += a.at({1, k}) * b.at({k, j});
    CHECK_EQ(made[static_cast<size_t>(j)], sum);
  }
}

/// A convolution: what PyTorch's operator takes, and what comes of it.
struct Convolution {
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;
  bool channels_last = false;

  /// Strides of a tensor without gaps.
  std::vector<int64_t> strides_of(const std::vector<int64_t>& sizes) const {
    std::vector<size_t> order(sizes.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (channels_last) std::rotate(order.begin() + 1, order.begin() + 2, order.end());
    std::vector<int64_t> made(sizes.size());
    int64_t next = 1;
    for (size_t i = order.size(); i-- > 0; next *= sizes[order[i]]) made[order[i]] = next;
    return made;
  }

  std::vector<int64_t> target_of(const Tensor& x, const Tensor& w) const {
    std::vector<int64_t> made{x.sizes[0], w.sizes[0]};
    for (size_t i = 0; i < stride.size(); ++i) {
      made.push_back((x.sizes[i + 2] + 2 * padding[i] - dilation[i] * (w.sizes[i + 2] - 1) - 1) / stride[i] + 1);
    }
    return made;
  }

  static ob_operand integers(const std::vector<int64_t>& values) {
    ob_operand made{};
    made.kind = OB_OPERAND_INTEGERS;
    made.count = static_cast<uint32_t>(values.size());
    made.sizes = values.data();
    return made;
  }

  static ob_operand integer(int64_t value) {
    ob_operand made{};
    made.kind = OB_OPERAND_INTEGER;
    made.integer = value;
    return made;
  }

  std::vector<ob_operand> operands(const Tensor& x, const Tensor& w, const Tensor* bias, const Tensor& y,
                                   bool found = false, bool transposed = false) const {
    return {x.operand(false, found),
            w.operand(false, found),
            bias != nullptr ? bias->operand(false, found) : ob_operand{},
            integers(stride),
            integers(padding),
            integers(dilation),
            integer(transposed ? 1 : 0),
            integers(padding),  // of transposed ones, which nobody needs who knows the result's sizes
            integer(groups),
            y.operand(true, found)};
  }

  /// Of a gradient, one for each 1 in the mask.
  std::vector<ob_operand> operands_of_gradient(const Tensor& grad, const Tensor& input, const Tensor& w,
                                               bool transposed, const std::vector<int64_t>& mask,
                                               const Tensor& made) const {
    return {grad.operand(),    input.operand(),   w.operand(),        {},  // sizes of a bias
            integers(stride),  integers(padding), integers(dilation), integer(transposed ? 1 : 0),
            integers(padding), integer(groups),   integers(mask),     made.operand(true)};
  }

  /// Sums of all products y[to] += x[from] * w[tap] that belong to each element of one of the three, by its place.
  std::vector<float> sums(const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& made) const {
    std::vector<float> all(made.values.size(), 0);
    std::vector<int64_t> box = y.sizes;
    box.insert(box.end(), w.sizes.begin() + 1, w.sizes.end());
    each_index(box, [&](const std::vector<int64_t>& at) {
      const size_t rank = y.sizes.size();
      const std::vector<int64_t> to(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(rank));
      std::vector<int64_t> from{at[0], at[1] / (w.sizes[0] / groups) * w.sizes[1] + at[rank]}, tap{at[1], at[rank]};
      for (size_t i = 2; i < rank; ++i) {
        tap.push_back(at[rank + i - 1]);
        from.push_back(at[i] * stride[i - 2] - padding[i - 2] + tap[i] * dilation[i - 2]);
        if (from[i] < 0 || from[i] >= x.sizes[i]) return;
      }
      if (&made == &y) all[y.place(to)] += x.at(from) * w.at(tap);
      if (&made == &x) all[x.place(from)] += y.at(to) * w.at(tap);
      if (&made == &w) all[w.place(tap)] += x.at(from) * y.at(to);
    });
    return all;
  }

  /// Whether a tensor has these elements, and a bias added to each, as near as its dtype can be.
  static bool has(const Stream& stream, Tensor& made, const std::vector<float>& wanted, const Tensor* bias = nullptr) {
    made.download(stream);
    const float tolerance = made.dtype == kBfloat16 ? 1.0F / 128 : made.dtype == kHalf ? 1.0F / 1024 : 0;
    bool right = true;
    each_index(made.sizes, [&](const std::vector<int64_t>& at) {
      const float sum = wanted[made.place(at)] + (bias != nullptr ? bias->at({at[1]}) : 0);
      right = right && std::fabs(made.at(at) - sum) <= tolerance * std::max(std::fabs(sum), 32.0F);
    });
    return right;
  }

  /// The convolution transposed, and the gradients of both, on three tensors of one problem.
  void check_gradients_on(const Stream& stream, const std::vector<int64_t>& image, const std::vector<int64_t>& kernel,
                          uint32_t dtype = kFloat) const {
    const Tensor x(stream, image, strides_of(image), dtype), w(stream, kernel, strides_of(kernel), dtype);
    const std::vector<int64_t> sizes = target_of(x, w);
    const Tensor y(stream, sizes, strides_of(sizes), dtype);
    Tensor spread(stream, image, x.strides, dtype);
    succeed(call(stream, "aten::convolution", operands(y, w, nullptr, spread, false, true)));
    CHECK(has(stream, spread, sums(x, w, y, x)));
    const auto check = [&](bool transposed, const std::vector<int64_t>& mask, const Tensor& of) {
      Tensor made(stream, of.sizes, of.strides, dtype);
      const Tensor& grad = transposed ? x : y;
      const Tensor& input = transposed ? y : x;
      succeed(call(stream, "aten::convolution_backward", operands_of_gradient(grad, input, w, transposed, mask, made)));
      CHECK(has(stream, made, sums(x, w, y, of)));
    };
    for (const bool transposed : {false, true}) {
      check(transposed, {1, 0, 0}, transposed ? y : x);
      check(transposed, {0, 1, 0}, w);
    }
  }

  bool is_right(const Stream& stream, const Tensor& x, const Tensor& w, const Tensor* bias, Tensor& y) const {
    return has(stream, y, sums(x, w, y, y), bias);
  }

  /// Finds it, calls it, and compares; with a bias and without.
  void check_on(const Stream& stream, const std::vector<int64_t>& image, const std::vector<int64_t>& kernel,
                uint32_t dtype = kFloat) const {
    const Tensor x(stream, image, strides_of(image), dtype), w(stream, kernel, strides_of(kernel), dtype);
    const Tensor bias(stream, {kernel[0]}, {1}, dtype);
    const std::vector<int64_t> sizes = target_of(x, w);
    for (const Tensor* added : {static_cast<const Tensor*>(nullptr), &bias}) {
      Tensor y(stream, sizes, strides_of(sizes), dtype);
      succeed(call(stream, "aten::convolution", operands(x, w, added, y)));
      CHECK(is_right(stream, x, w, added, y));
    }
  }
};

/// Before all others: the handle is made at the first convolution, and asked for again after it could not be.
TEST(a_cudnn_that_fails) {
  const Convolution plain{{1, 1}, {0, 0}, {1, 1}, 1, false};
  const Stream stream;
  const Tensor x(stream, {1, 1, 3, 3}, {9, 9, 3, 1}), w(stream, {1, 1, 2, 2}, {4, 4, 2, 1});
  Tensor y(stream, {1, 1, 2, 2}, {4, 4, 2, 1});
  const std::vector<ob_operand> operands = plain.operands(x, w, nullptr, y);
  fail_next("cudnnCreate", 1001);
  CHECK_EQ(call(stream, "aten::convolution", operands), OB_UNSUPPORTED);
  CHECK(says("cudnnCreate returned 1001 (CUDNN_STATUS_SIMULATED: the simulator was asked to fail)"));
  for (const char* each : {"cudnnBackendCreateDescriptor", "cudnnBackendFinalize"}) {
    fail_next(each, 4003);
    CHECK_EQ(call(stream, "aten::convolution", operands), OB_UNSUPPORTED);
  }
  fail_next("cudnnBackendGetAttribute", 4000);  // of the first heuristics: the others find something
  succeed(call(stream, "aten::convolution", operands));
  CHECK(plain.is_right(stream, x, w, nullptr, y));
  CHECK_EQ(calls("cudnn: engine 7"), 1);
  fail_next("cuMemAlloc", 2);  // of the workspace
  const Stream fresh;
  CHECK_EQ(call(fresh, "aten::convolution", operands), OB_OUT_OF_MEMORY);
  succeed(call(fresh, "aten::convolution", operands));
  CHECK(plain.is_right(fresh, x, w, nullptr, y));
  fail_next("cudnnSetStream", 2007);
  CHECK_EQ(call(stream, "aten::convolution", operands), OB_INTERNAL);
  CHECK(says("cudnnSetStream returned 2007"));
  fail_next("cudnnBackendExecute", 5000);
  CHECK_EQ(call(stream, "aten::convolution", operands), OB_INTERNAL);
  CHECK(says("cudnnBackendExecute returned 5000 (CUDNN_STATUS_EXECUTION_FAILED: the simulator was asked to fail)"));
  succeed(call(stream, "aten::convolution", operands));
  CHECK(plain.is_right(stream, x, w, nullptr, y));
}

TEST(convolutions_by_cudnn) {
  const Stream stream;
  for (const bool last : {false, true}) {
    for (const uint32_t dtype : {kFloat, kDouble, kHalf, kBfloat16}) {
      Convolution{{1, 1}, {0, 0}, {1, 1}, 1, last}.check_on(stream, {2, 3, 5, 6}, {4, 3, 3, 2}, dtype);
      Convolution{{2, 1}, {1, 2}, {1, 2}, 1, last}.check_on(stream, {1, 4, 7, 8}, {2, 4, 3, 3}, dtype);
      Convolution{{1, 2}, {2, 0}, {2, 1}, 2, last}.check_on(stream, {3, 4, 6, 5}, {6, 2, 2, 2}, dtype);
    }
    Convolution{{1, 1}, {1, 1}, {1, 1}, 6, last}.check_on(stream, {2, 6, 4, 4}, {6, 1, 3, 3});  // by channels
    Convolution{{1, 1}, {0, 0}, {1, 1}, 1, last}.check_on(stream, {2, 5, 4, 4}, {3, 5, 1, 1});
    Convolution{{1, 1}, {0, 0}, {1, 1}, 1, last}.check_on(stream, {1, 1, 3, 3}, {1, 1, 3, 3});
    Convolution{{2}, {3}, {2}, 1, last}.check_on(stream, {2, 3, 11}, {4, 3, 4});
    Convolution{{1}, {0}, {1}, 3, last}.check_on(stream, {2, 3, 11}, {6, 1, 2});
    Convolution{{1, 2, 1}, {1, 0, 2}, {1, 1, 2}, 1, last}.check_on(stream, {2, 2, 4, 5, 6}, {3, 2, 2, 3, 2});
  }
}

TEST(gradients_and_transposed_convolutions_by_cudnn) {
  const Stream stream;
  const int data = calls("cudnn: gradient of x"), weights = calls("cudnn: gradient of w");
  for (const bool last : {false, true}) {
    for (const uint32_t dtype : {kFloat, kDouble, kHalf, kBfloat16}) {
      Convolution{{1, 1}, {0, 0}, {1, 1}, 1, last}.check_gradients_on(stream, {2, 3, 5, 6}, {4, 3, 3, 2}, dtype);
      Convolution{{2, 1}, {1, 2}, {1, 2}, 1, last}.check_gradients_on(stream, {1, 4, 7, 8}, {2, 4, 3, 3}, dtype);
      // With a last row and column that no tap reaches.
      Convolution{{2, 3}, {0, 0}, {1, 1}, 2, last}.check_gradients_on(stream, {3, 4, 6, 7}, {6, 2, 2, 2}, dtype);
    }
    Convolution{{1, 1}, {1, 1}, {1, 1}, 6, last}.check_gradients_on(stream, {2, 6, 4, 4}, {6, 1, 3, 3});
    Convolution{{1, 1}, {0, 0}, {1, 1}, 3, last}.check_gradients_on(stream, {2, 3, 4, 4}, {6, 1, 1, 1});
    Convolution{{2}, {3}, {2}, 1, last}.check_gradients_on(stream, {2, 3, 11}, {4, 3, 4});
    Convolution{{1, 2, 1}, {1, 0, 2}, {1, 1, 2}, 1, last}.check_gradients_on(stream, {2, 2, 4, 5, 6}, {3, 2, 2, 3, 2});
  }
  CHECK_EQ(calls("cudnn: gradient of x") - data, 32 * 2);  // a transposed convolution, and a gradient
  CHECK_EQ(calls("cudnn: gradient of w") - weights, 32 * 2);
}

/// The best engine for weights wants a larger workspace than there always is.
TEST(a_workspace_that_grows) {
  const Stream stream;
  const Convolution plain{{1, 1}, {0, 0}, {1, 1}, 1, false};
  const Tensor x(stream, {1, 2, 4, 4}, {32, 16, 4, 1}), w(stream, {3, 2, 3, 3}, {18, 9, 3, 1});
  const Tensor y(stream, {1, 3, 2, 2}, {12, 4, 2, 1});
  Tensor made(stream, w.sizes, w.strides);
  const std::vector<int64_t> mask{0, 1, 0};
  const std::vector<ob_operand> operands = plain.operands_of_gradient(y, x, w, false, mask, made);
  const std::vector<int> before{calls("cudnn: engine 6"), calls("cudnn: engine 7"), calls("cuMemAlloc")};
  for (int i = 0; i < 3; ++i) {
    succeed(call(stream, "aten::convolution_backward", operands));
    CHECK(Convolution::has(stream, made, plain.sums(x, w, y, w)));
  }
  CHECK_EQ(calls("cudnn: engine 6") - before[0], 3);
  CHECK_EQ(calls("cuMemAlloc") - before[2], 1);
  // Where it cannot have it, another engine will do.
  const Stream fresh;
  fail_next("cuMemAlloc", 2);
  succeed(call(fresh, "aten::convolution_backward", operands));
  CHECK(Convolution::has(fresh, made, plain.sums(x, w, y, w)));
  CHECK_EQ(calls("cudnn: engine 7") - before[1], 1);
  succeed(call(fresh, "aten::convolution_backward", operands));  // and when there is memory again, it is taken
  CHECK_EQ(calls("cudnn: engine 6") - before[0], 4);
  stream.wait();
  fresh.wait();
}

TEST(which_engines_are_taken) {
  const Stream stream;
  const int right = calls("cudnn: engine 6"), cores = calls("cudnn: engine 0"), any = calls("cudnn: engine 7");
  const Convolution plain{{1, 1}, {0, 0}, {1, 1}, 1, false}, last{{1, 1}, {0, 0}, {1, 1}, 1, true};
  plain.check_on(stream, {1, 2, 3, 3}, {4, 2, 2, 2}, kFloat);
  CHECK_EQ(calls("cudnn: engine 6"), right + 2);  // without a bias, and with one in the same graph
  plain.check_on(stream, {1, 2, 3, 3}, {4, 2, 2, 2}, kHalf);
  CHECK_EQ(calls("cudnn: engine 0"), cores + 2);  // tensor cores take halves as they are
  const int together = calls("cudnn: two operations");
  last.check_on(stream, {1, 2, 3, 3}, {4, 2, 2, 2}, kHalf);
  CHECK_EQ(calls("cudnn: two operations"), together + 1);
  CHECK_EQ(calls("cudnn: engine 7"), any);
}

TEST(what_lies_with_gaps_or_at_odd_addresses) {
  const Stream stream;
  const Convolution plain{{1, 1}, {1, 1}, {1, 1}, 1, false};
  const Tensor x(stream, {2, 3, 4, 4}, {60, 20, 5, 1}), w(stream, {2, 3, 3, 3}, {27, 9, 3, 1});
  Tensor y(stream, {2, 2, 4, 4}, {32, 16, 4, 1});
  const int any = calls("cudnn: engine 7");
  succeed(call(stream, "aten::convolution", plain.operands(x, w, nullptr, y)));
  CHECK(plain.is_right(stream, x, w, nullptr, y));
  CHECK_EQ(calls("cudnn: engine 7"), any + 1);
  // The second image of three, each of 9 numbers: where vectors may not be read.
  const Tensor images(stream, {3, 1, 3, 3}, {9, 9, 3, 1}), kernel(stream, {1, 1, 3, 3}, {9, 9, 3, 1});
  Tensor one(stream, {1, 1, 3, 3}, {9, 9, 3, 1}), target(stream, {1, 1, 3, 3}, {9, 9, 3, 1});
  std::vector<ob_operand> operands = plain.operands(one, kernel, nullptr, target);
  operands[0].data = images.memory->pointer + 9 * sizeof(float);
  succeed(call(stream, "aten::convolution", operands));
  std::copy_n(images.values.begin() + 9, 9, one.values.begin());
  CHECK(plain.is_right(stream, one, kernel, nullptr, target));
}

TEST(a_convolution_for_other_sizes) {
  const Stream stream;
  const Convolution plain{{1, 1}, {1, 1}, {1, 1}, 1, false};
  const Tensor x(stream, {1, 2, 4, 4}, {32, 16, 4, 1}), w(stream, {3, 2, 3, 3}, {18, 9, 3, 1}), bias(stream, {3}, {1});
  const Tensor y(stream, {1, 3, 4, 4}, {48, 16, 4, 1});
  const std::vector<ob_operand> found = plain.operands(x, w, &bias, y, true);
  ob_function function = nullptr, again = nullptr;
  succeed(driver().library_find(device(), "aten::convolution", found.data(), 10, &function));
  const Tensor larger(stream, {5, 2, 7, 6}, {84, 42, 6, 1});
  Tensor target(stream, {5, 3, 7, 6}, {126, 42, 6, 1});
  const std::vector<ob_operand> operands = plain.operands(larger, w, &bias, target);
  succeed(driver().library_call(stream.handle, function, operands.data(), 10));
  CHECK(plain.is_right(stream, larger, w, &bias, target));
  const int made = calls("cudnnBackendFinalize");
  succeed(driver().library_find(device(), "aten::convolution", found.data(), 10, &again));
  CHECK(function == again);
  succeed(driver().library_call(stream.handle, function, operands.data(), 10));
  stream.wait();
  CHECK_EQ(calls("cudnnBackendFinalize") - made, 1);  // of the addresses: plans are remembered
}

TEST(what_cudnn_is_not_asked_for) {
  const Stream stream;
  const Convolution plain{{1, 1}, {0, 0}, {1, 1}, 1, false}, deep{{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1, false};
  const Tensor x(stream, {1, 2, 4, 4}, {32, 16, 4, 1}), w(stream, {3, 2, 3, 3}, {18, 9, 3, 1});
  const Tensor y(stream, {1, 3, 2, 2}, {12, 4, 2, 1}), integers(stream, {1, 3, 2, 2}, {12, 4, 2, 1}, 3);
  const Tensor sparse(stream, {3}, {2}), one(stream, {2, 4, 4}, {16, 4, 1});
  const auto refused = [&](std::vector<ob_operand> operands) {
    return call(stream, "aten::convolution", std::move(operands)) == OB_UNSUPPORTED;
  };
  std::vector<ob_operand> transposed = plain.operands(x, w, nullptr, y), negative = transposed, few = transposed;
  transposed[6].integer = 1;  // of other sizes than these
  const std::vector<int64_t> less{-1, 0};
  negative[4].sizes = less.data();
  few.pop_back();
  CHECK(refused(transposed) && refused(negative) && refused(few));
  CHECK(refused(plain.operands(x, w, nullptr, integers)));
  CHECK(refused(plain.operands(x, w, &sparse, y)));
  CHECK(refused(plain.operands(one, w, nullptr, y)));  // without a batch
  const Tensor bias(stream, {2}, {1});
  succeed(call(stream, "aten::convolution", plain.operands(y, w, nullptr, x, false, true)));
  CHECK(refused(plain.operands(y, w, &bias, x, false, true)));  // a sum behind what cuDNN calls a gradient
  stream.wait();
  CHECK(says("there is no library function for aten::convolution"));
  for (const std::vector<int64_t>& mask : {std::vector<int64_t>{1, 1, 0}, {0, 0, 0}, {0, 0, 1}, {1, 0, 1}, {1, 0}}) {
    CHECK_EQ(call(stream, "aten::convolution_backward", plain.operands_of_gradient(y, x, w, false, mask, x)),
             OB_UNSUPPORTED);
  }
  CHECK(says("there is no library function for aten::convolution_backward"));
  const Tensor cube(stream, {1, 1, 2, 2, 2}, {8, 8, 4, 2, 1}, kDouble),
      tap(stream, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}, kDouble);
  CHECK(refused(deep.operands(cube, tap, nullptr, cube)));  // no engine, of this simulator's
}

/// Attention: what PyTorch's operator takes, and what comes of it.
struct Attention {
  bool causal = false;
  double scale = 0;  // 0: the usual one

  std::vector<ob_operand> operands(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& out,
                                   const Tensor& logarithms, bool found = false) const {
    ob_operand truth{}, factor = number(scale);
    truth.kind = OB_OPERAND_INTEGER;
    truth.integer = causal ? 1 : 0;
    return {query.operand(false, found),
            key.operand(false, found),
            value.operand(false, found),
            number(0),  // of dropout
            truth,
            {},  // a mask
            scale == 0 ? ob_operand{} : factor,
            out.operand(true, found),
            logarithms.operand(true, found)};
  }

  /// Weights of one query, by the definition, and the logarithm of their sum.
  float weigh(const Tensor& query, const Tensor& key, const std::vector<int64_t>& row,
              std::vector<float>* weights) const {
    const int64_t head = row[1] / (query.sizes[1] / key.sizes[1]), width = query.sizes[3];
    const int64_t end = causal ? std::min(row[2] + 1, key.sizes[2]) : key.sizes[2];
    const float factor = scale == 0 ? 1 / std::sqrt(static_cast<float>(width)) : static_cast<float>(scale);
    float total = 0;
    for (int64_t j = 0; j < end; ++j) {
      float sum = 0;
      for (int64_t e = 0; e < width; ++e) sum += query.at({row[0], row[1], row[2], e}) * key.at({row[0], head, j, e});
      weights->push_back(std::exp(sum * factor));
      total += weights->back();
    }
    for (float& each : *weights) each /= total;
    return std::log(total);
  }

  bool is_right(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value, Tensor& out,
                Tensor& logarithms) const {
    out.download(stream);
    logarithms.download(stream);
    const float tolerance = out.dtype == kBfloat16 ? 0.04F : 0.006F;
    const int64_t share = query.sizes[1] / key.sizes[1];
    const auto row_is_right = [&](const std::vector<int64_t>& row) {
      std::vector<float> weights;
      const float logarithm = weigh(query, key, row, &weights);
      if (!(std::fabs(logarithms.at(row) - logarithm) < 1e-3F)) return false;
      for (int64_t e = 0; e < value.sizes[3]; ++e) {
        float wanted = 0;
        for (size_t j = 0; j < weights.size(); ++j)
          wanted += weights[j] * value.at({row[0], row[1] / share, static_cast<int64_t>(j), e});
        if (!(std::fabs(out.at({row[0], row[1], row[2], e}) - wanted) < tolerance)) return false;
      }
      return true;
    };
    for (int64_t b = 0; b < query.sizes[0]; ++b) {
      for (int64_t h = 0; h < query.sizes[1]; ++h) {
        for (int64_t i = 0; i < query.sizes[2]; ++i) {
          if (!row_is_right({b, h, i})) return false;
        }
      }
    }
    return true;
  }
};

/// Tensors of one attention; of PyTorch's two orders, heads outside or inside.
struct Heads {
  Heads(const Stream& stream, std::vector<int64_t> size, int64_t key_heads, int64_t keys, uint32_t dtype = kHalf,
        bool inside = true)
      : query(stream, size, strides_of(size, inside), dtype),
        key(stream, {size[0], key_heads, keys, size[3]}, strides_of({size[0], key_heads, keys, size[3]}, inside),
            dtype),
        value(stream, key.sizes, key.strides, dtype),
        out(stream, size, query.strides, dtype),
        logarithms(stream, {size[0], size[1], size[2]}, {size[1] * size[2], 1, size[1]}) {}

  static std::vector<int64_t> strides_of(const std::vector<int64_t>& size, bool inside) {
    if (inside) return {size[2] * size[1] * size[3], size[3], size[1] * size[3], 1};
    return {size[1] * size[2] * size[3], size[2] * size[3], size[3], 1};
  }
  std::vector<ob_operand> operands(const Attention& how, bool found = false) const {
    return how.operands(query, key, value, out, logarithms, found);
  }
  bool is_right(const Stream& stream, const Attention& how) {
    return how.is_right(stream, query, key, value, out, logarithms);
  }

  Tensor query, key, value, out, logarithms;
};

constexpr const char* kAttend = "aten::_scaled_dot_product_flash_attention_for_cpu";

TEST(attention_by_cudnn) {
  const Stream stream;
  const int before = calls("cudnn: attention");
  for (const uint32_t dtype : {kHalf, kBfloat16}) {
    for (const bool inside : {false, true}) {
      for (const Attention& how : {Attention{}, Attention{true}, Attention{true, 0.5}, Attention{false, -0.25}}) {
        for (const int64_t keys : {1, 20, 33, 40}) {
          Heads heads(stream, {2, 4, 33, 8}, 2, keys, dtype, inside);
          succeed(call(stream, kAttend, heads.operands(how)));
          CHECK(heads.is_right(stream, how));
        }
      }
    }
  }
  CHECK_EQ(calls("cudnn: attention"), before + 64);
}

TEST(attention_with_dimensions_of_one_and_rows_apart) {
  const Stream stream;
  const Attention how{true};
  Heads one(stream, {1, 1, 32, 16}, 1, 9);
  for (Tensor* each : {&one.query, &one.key, &one.value, &one.out}) each->strides[0] = each->strides[1] = 3;
  one.logarithms.strides[0] = 7;
  succeed(call(stream, kAttend, one.operands(how)));
  CHECK(one.is_right(stream, how));
  // Queries, keys and values of one projection, side by side.
  const std::vector<int64_t> apart{40 * 3 * 2 * 8, 8, 3 * 2 * 8, 1};
  Tensor query(stream, {2, 2, 40, 8}, apart, kHalf), key(stream, query.sizes, apart, kHalf);
  Tensor value(stream, query.sizes, apart, kHalf);
  Heads results(stream, {2, 2, 40, 8}, 2, 40);
  succeed(call(stream, kAttend, how.operands(query, key, value, results.out, results.logarithms)));
  CHECK(how.is_right(stream, query, key, value, results.out, results.logarithms));
}

TEST(attention_for_other_sizes) {
  const Stream stream;
  const Attention how{true};
  const Heads small(stream, {1, 2, 32, 8}, 1, 32);
  const std::vector<ob_operand> found = small.operands(how, true);
  ob_function function = nullptr;
  succeed(driver().library_find(device(), kAttend, found.data(), 9, &function));
  Heads larger(stream, {3, 4, 50, 16}, 2, 70);
  const std::vector<ob_operand> operands = larger.operands(how);
  succeed(driver().library_call(stream.handle, function, operands.data(), 9));
  CHECK(larger.is_right(stream, how));
  const int made = calls("cudnnBackendFinalize");
  succeed(driver().library_call(stream.handle, function, operands.data(), 9));
  stream.wait();
  CHECK_EQ(calls("cudnnBackendFinalize") - made, 1);  // of the addresses
  // Values at an address where no vector may be read.
  std::vector<ob_operand> shifted = operands;
  shifted[2].data += 2;
  CHECK_EQ(driver().library_call(stream.handle, function, shifted.data(), 9), OB_UNSUPPORTED);
  CHECK(says("cuDNN cannot compute this attention"));
}

TEST(what_attention_cudnn_is_not_asked_for) {
  const Stream stream;
  const auto refused = [&](const std::vector<ob_operand>& operands) {
    return call(stream, kAttend, operands) == OB_UNSUPPORTED;
  };
  const Attention plain;
  const Heads good(stream, {1, 2, 32, 8}, 2, 32);
  std::vector<ob_operand> dropped = good.operands(plain), masked = dropped, short_of_one = dropped;
  dropped[3].number = 0.5;
  const Tensor mask(stream, {32, 32}, {32, 1}, kHalf);
  masked[5] = mask.operand();
  short_of_one.pop_back();
  CHECK(refused(dropped) && refused(masked) && refused(short_of_one));
  CHECK(refused(Heads(stream, {1, 2, 32, 12}, 2, 32).operands(plain)));         // no whole vectors
  CHECK(refused(Heads(stream, {1, 2, 32, 8}, 2, 32, kFloat).operands(plain)));  // nor of this dtype
  CHECK(refused(Heads(stream, {1, 3, 32, 8}, 2, 32).operands(plain)));          // heads without a share
  CHECK(refused(Heads(stream, {1, 1, 32, 256}, 1, 32).operands(plain)));        // no engine, of this simulator's
  Tensor sparse(stream, {1, 2, 32, 8}, {1024, 512, 16, 2}, kHalf);
  CHECK(refused(plain.operands(sparse, good.key, good.value, good.out, good.logarithms)));
  Tensor odd(stream, {1, 2, 32, 8}, {32 * 17, 8, 17, 1}, kHalf);
  CHECK(refused(plain.operands(good.query, odd, good.value, good.out, good.logarithms)));
  succeed(call(stream, kAttend, good.operands(plain)));
  stream.wait();
}

TEST(threads_take_turns_at_a_handle) {
  std::vector<std::thread> threads;
  std::vector<std::string> problems(3);
  for (size_t i = 0; i < problems.size(); ++i) {
    threads.emplace_back([i, &problems] {
      try {
        const Stream stream;
        const auto size = static_cast<int64_t>(i) + 4;
        for (int each = 0; each < 20; ++each) {
          Convolution{{1, 1}, {1, 1}, {1, 1}, 1, false}.check_on(stream, {1, 2, size, 5}, {2, 2, 3, 3});
        }
      } catch (const std::exception& error) {
        problems[i] = error.what();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  for (const std::string& problem : problems) CHECK_EQ(problem, "");
}

TEST(on_another_device) {
  const Stream stream(device(1));
  const Convolution plain{{1, 1}, {0, 0}, {1, 1}, 1, false};
  const Stream here;
  Memory x(16 * 4, device(1)), w(4 * 4, device(1)), y(9 * 4, device(1));
  const std::vector<float> ones(16, 1), taps{1, 2, 3, 4};
  stream.upload(x, ones.data());
  stream.upload(w, taps.data());
  const Tensor image(here, {1, 1, 4, 4}, {16, 16, 4, 1}), kernel(here, {1, 1, 2, 2}, {4, 4, 2, 1});
  const Tensor target(here, {1, 1, 3, 3}, {9, 9, 3, 1});
  std::vector<ob_operand> operands = plain.operands(image, kernel, nullptr, target);
  operands[0].data = x.pointer;
  operands[1].data = w.pointer;
  operands[9].data = y.pointer;
  ob_function function = nullptr;
  succeed(driver().library_find(device(1), "aten::convolution", operands.data(), 10, &function));
  succeed(driver().library_call(stream.handle, function, operands.data(), 10));
  CHECK(stream.download<float>(y) == std::vector<float>(9, 10));
}

/// A cuDNN from before it had attention as one operation, in a process of its own.
int no_attention() {
  setenv("CUDA_SIMULATOR_CUDNN", "92000", 1);
  const Stream stream;
  const Heads heads(stream, {1, 1, 32, 8}, 1, 32);
  const bool refused = call(stream, kAttend, heads.operands({})) == OB_UNSUPPORTED &&
                       says("cuDNN 9.20.0 is too old for attention: version 9.21 has it");
  Convolution{{1, 1}, {0, 0}, {1, 1}, 1, false}.check_on(stream, {1, 1, 3, 3}, {1, 1, 2, 2});
  return refused ? 0 : 1;
}

/// A cuDNN that is none, in a process of its own: products go on, and who asks for convolutions learns why there are
/// none.
int no_convolutions(const char* variable, const char* value, const char* problem) {
  setenv(variable, value, 1);
  ob_device_properties properties{};
  properties.struct_size = sizeof(properties);
  succeed(driver().device_properties(device(), &properties));
  const Stream stream;
  const Convolution plain{{1, 1}, {0, 0}, {1, 1}, 1, false};
  const Tensor x(stream, {2, 3}, {3, 1}), w(stream, {3, 2}, {2, 1}), y(stream, {2, 2}, {2, 1});
  const Tensor image(stream, {1, 1, 2, 2}, {4, 4, 2, 1});
  const bool refused =
      call(stream, "aten::convolution", plain.operands(image, image, nullptr, image)) == OB_UNSUPPORTED &&
      says(problem);
  std::printf("%s: %s\n", properties.library, driver().last_error());
  succeed(call(stream, "aten::mm", {x.operand(), w.operand(), y.operand(true)}));
  return refused && std::string(properties.library) == "cuBLASLt 130100" ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  const std::string scenario = count > 1 ? words[1] : "";
  if (scenario == "no_cudnn") return no_convolutions("OUTBOARD_CUDA_CUDNN", "/no/such/libcudnn.so.9", "was not found");
  if (scenario == "other_cudnn") return no_convolutions("OUTBOARD_CUDA_CUDNN", "libm.so.6", "is not cuDNN 9");
  if (scenario == "old_cudnn") return no_convolutions("CUDA_SIMULATOR_CUDNN", "8907", "is not cuDNN 9");
  if (scenario == "cudnn_without_attention") return no_attention();
  return check::run_all();
}
