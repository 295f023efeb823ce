// SPDX-License-Identifier: Apache-2.0
#include "sim/graph.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <type_traits>

#include "common/table.h"

namespace outboard::sim {
namespace {

constexpr const char* kVersion = "outboard-sim 1";
enum : uint32_t {  // as PyTorch counts
  kUInt8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kFloat32 = 6,
  kFloat64 = 7,
  kBool = 11,
  kBFloat16 = 15
};

using Sizes = std::vector<int64_t>;
constexpr int64_t kAnySize = -1;  // of an input

[[noreturn]] void damaged(const std::string& what) { throw common::BuildError("not an executable of sim: " + what); }

/// FNV-1a of 64 bits.
uint64_t checksum(const char* text, size_t size) {
  uint64_t value = 0xcbf29ce484222325;
  for (size_t i = 0; i < size; ++i) value = (value ^ static_cast<unsigned char>(text[i])) * 0x100000001b3;
  return value;
}

int64_t count(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<int64_t>());
}

Sizes dense_strides(const Sizes& sizes) {
  Sizes strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  return strides;
}

/// Calls `use(place)` for each element in order: where it is by these strides.
template <typename Use>
void walk(const Sizes& sizes, const Sizes& strides, Use use) {
  Sizes index(sizes.size(), 0);
  int64_t place = 0;
  for (int64_t left = count(sizes); left > 0; --left) {
    use(place);
    for (size_t d = sizes.size(); d-- > 0;) {
      place += strides[d];
      if (++index[d] < sizes[d]) break;
      place -= strides[d] * sizes[d];
      index[d] = 0;
    }
  }
}

// ---- elements: computed as doubles or integers of 64 bits, kept as their dtype has them ----
// Halves are rounded to float32 before, as PyTorch's CPU does.

// Integers wrap around, as PyTorch's do.
double plus(double a, double b) { return a + b; }
int64_t plus(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
double times(double a, double b) { return a * b; }
int64_t times(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

Number both(double real, int64_t integer) {
  Number made(real);
  made.integer = integer;
  return made;
}

Number operator+(const Number& a, const Number& b) { return both(plus(a.real, b.real), plus(a.integer, b.integer)); }
Number operator*(const Number& a, const Number& b) { return both(times(a.real, b.real), times(a.integer, b.integer)); }
Number operator-(const Number& a) { return both(-a.real, times(a.integer, int64_t{-1})); }
Number operator-(const Number& a, const Number& b) { return a + -b; }
bool operator<(const Number& a, const Number& b) {
  return a.real < b.real || (a.real == b.real && a.integer < b.integer);
}
bool operator==(const Number& a, const Number& b) { return a.real == b.real && a.integer == b.integer; }
bool is_true(const Number& a) { return a.real != 0; }
bool is_nan(const Number& a) { return std::isnan(a.real); }

template <typename T>
Number load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  if constexpr (std::is_integral_v<T>) return Number::of(value);
  return Number(static_cast<double>(value));
}
/// An integer is rounded once, not to a double before.
template <typename T>
T real(const Number& number) {
  const bool is_integer = number.integer != 0 && number.real == static_cast<double>(number.integer);
  return is_integer ? static_cast<T>(number.integer) : static_cast<T>(number.real);
}
template <typename T>
void store(char* at, const Number& number) {
  T value;
  if constexpr (std::is_integral_v<T>) {
    value = static_cast<T>(number.integer);
  } else {
    value = real<T>(number);
  }
  std::memcpy(at, &value, sizeof(T));
}

uint16_t bits_of(const char* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return bits;
}
void set_bits(char* at, uint16_t bits) { std::memcpy(at, &bits, sizeof(bits)); }

float from_bfloat16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}
uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

double from_float16(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f, steps = bits & 0x3ff;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 0x1f) return steps == 0 ? sign * HUGE_VAL : NAN;
  return sign * (exponent == 0 ? std::ldexp(steps, -24) : std::ldexp(steps + 0x400, exponent - 25));
}
uint16_t to_float16(float number) {
  if (std::isnan(number)) return 0x7e00;
  const uint32_t sign = std::signbit(number) ? 0x8000 : 0;
  const double size = std::fabs(number);
  if (size >= 65520) return static_cast<uint16_t>(sign | 0x7c00);  // half a step above the largest number
  int exponent;
  std::frexp(size, &exponent);
  const int last = size < 0x1p-14 ? -24 : exponent - 11;  // the last bit counts 2 to the power of this
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, -last)));
  return static_cast<uint16_t>(sign | (static_cast<uint32_t>(last + 24) * 0x400 + steps));
}

struct Type {
  uint32_t bytes;
  Number (*load)(const char*);
  void (*store)(char*, const Number&);
};

template <typename T>
constexpr Type kType{sizeof(T), load<T>, store<T>};

const Type& type_of(uint32_t dtype) {
  static const Type kBooleans{1, load<uint8_t>, [](char* at, const Number& number) { *at = is_true(number) ? 1 : 0; }};
  static const Type kHalves{2, [](const char* at) { return Number(from_float16(bits_of(at))); },
                            [](char* at, const Number& number) { set_bits(at, to_float16(real<float>(number))); }};
  static const Type kBFloats{2, [](const char* at) { return Number(from_bfloat16(bits_of(at))); },
                             [](char* at, const Number& number) { set_bits(at, to_bfloat16(real<float>(number))); }};
  static const std::map<uint32_t, const Type*> kTypes = {
      {kUInt8, &kType<uint8_t>}, {kInt8, &kType<int8_t>},   {kInt16, &kType<int16_t>},  {kInt32, &kType<int32_t>},
      {kInt64, &kType<int64_t>}, {kFloat32, &kType<float>}, {kFloat64, &kType<double>}, {kBool, &kBooleans},
      {kFloat16, &kHalves},      {kBFloat16, &kBFloats},
  };
  const auto found = kTypes.find(dtype);
  if (found == kTypes.end()) damaged("dtype " + std::to_string(dtype));
  return *found->second;
}

/// What an operation is given: its line, and the values that it reads.
struct Operands {
  const Instruction& line;
  std::vector<const Value*> values;

  const Value& value(size_t number) const { return *values.at(number); }
  int64_t integer(size_t number) const { return line.integers.at(number); }
};

bool is_integer(uint32_t dtype) { return dtype <= kInt64 || dtype == kBool; }

using Data = std::vector<Number>;
using Operation = std::function<Data(const Operands&)>;

/// An index along `dim` of a value. Throws WrongIndex with PyTorch's words.
int64_t checked(int64_t index, const Sizes& sizes, int64_t dim) {
  const int64_t size = sizes.at(static_cast<size_t>(dim));
  if (index >= 0 && index < size) return index;
  throw WrongIndex("index " + std::to_string(index) + " is out of bounds for dimension " + std::to_string(dim) +
                   " with size " + std::to_string(size));
}

/// Elements before, along and behind a dimension.
struct Split {
  Split(const Sizes& sizes, int64_t dim) {
    for (size_t d = 0; d < sizes.size(); ++d) {
      (static_cast<int64_t>(d) < dim ? before : static_cast<int64_t>(d) == dim ? along : behind) *= sizes[d];
    }
  }
  int64_t at(int64_t i, int64_t j, int64_t k) const { return (i * along + j) * behind + k; }
  int64_t before = 1, along = 1, behind = 1;
};

template <typename Function>
Operation each(Function function) {
  return [function](const Operands& call) {
    Data made(call.value(0).data.size());
    std::transform(call.value(0).data.begin(), call.value(0).data.end(), made.begin(), function);
    return made;
  };
}

Operation unary(double (*function)(double)) {
  return each([function](const Number& a) {
    const double made = function(a.real);
    const bool is_same = made == a.real && std::signbit(made) == std::signbit(a.real);
    return is_same ? a : Number(made);  // a rounded integer is itself, with all its digits
  });
}

template <typename Function>
Operation elementwise(Function function) {
  return [function](const Operands& call) {
    const Data &a = call.value(0).data, &b = call.value(1).data;
    if (a.size() != b.size()) throw std::length_error("operands of other sizes in an executable");
    Data made(a.size());
    std::transform(a.begin(), a.end(), b.begin(), made.begin(), function);
    return made;
  };
}

Operation binary(Number (*function)(const Number&, const Number&)) { return elementwise(function); }

Operation truth(bool (*function)(const Number&, const Number&)) { return elementwise(function); }

Operation bits(int64_t (*function)(int64_t, int64_t)) {
  return elementwise(
      [function](const Number& a, const Number& b) { return Number::of(function(a.integer, b.integer)); });
}

/// By one function for lines of integers, by another for all others.
Operation by_kind(double (*of_reals)(double, double), int64_t (*of_integers)(int64_t, int64_t)) {
  const Operation real = elementwise([of_reals](const Number& a, const Number& b) { return of_reals(a.real, b.real); });
  return [real, integer = bits(of_integers)](const Operands& call) {
    return is_integer(call.line.dtype) ? integer(call) : real(call);
  };
}

/// Towards zero.
int64_t quotient(int64_t a, int64_t b) {
  if (b == 0) throw WrongValue("ZeroDivisionError");
  return b == -1 ? times(a, b) : a / b;
}

int64_t floored_quotient(int64_t a, int64_t b) {
  const int64_t made = quotient(a, b);
  return b != -1 && a % b != 0 && (a < 0) != (b < 0) ? made - 1 : made;
}

/// What memory of a dtype makes of a number.
Number rounded(uint32_t dtype, const Number& number) {
  const Type& type = type_of(dtype);
  char memory[sizeof(double)];
  type.store(memory, number);
  return type.load(memory);
}

/// By the remainder, which is exact, as PyTorch's div_floor_floating (c10/util/generic_math.h) has it, each step in the
/// line's dtype: a quotient that is rounded up to an integer is not taken for one, and of an infinite a there is none.
double floored(double a, double b, uint32_t dtype) {
  const auto in_dtype = [dtype](double number) { return rounded(dtype, number).real; };
  if (b == 0) return a / b;
  const double rest = std::fmod(a, b);
  double quotient = in_dtype(in_dtype(a - rest) / b);
  if (rest != 0 && (b < 0) != (rest < 0)) quotient = in_dtype(quotient - 1);
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return in_dtype(quotient - whole) > 0.5 ? whole + 1 : whole;
}

Data floor_divide(const Operands& call) {
  const uint32_t dtype = call.line.dtype;
  if (is_integer(dtype)) return bits(floored_quotient)(call);
  return elementwise([dtype](const Number& a, const Number& b) { return Number(floored(a.real, b.real, dtype)); })(
      call);
}

/// a + b c, rounded once in float32 or float64, as PyTorch's CPU adds multiples.
Data multiply_add(const Operands& call) {
  Data made = call.value(0).data;
  for (size_t i = 0; i < made.size(); ++i) {
    const Number &a = made[i], &b = call.value(1).data.at(i), &c = call.value(2).data.at(i);
    const double sum = call.line.dtype == kFloat64 ? std::fma(b.real, c.real, a.real)
                                                   : std::fma(static_cast<float>(b.real), static_cast<float>(c.real),
                                                              static_cast<float>(a.real));
    made[i] = is_integer(call.line.dtype) ? a + b * c : Number(sum);
  }
  return made;
}

/// A real as an integer: of up to 32 bits by one of 32, of which those that it cannot be are the least, as x86 has it.
Data to_integer(const Operands& call) {
  Data made = call.value(0).data;
  if (call.line.dtype == kInt64) return made;
  for (Number& number : made) {
    const bool fits = number.real > -0x1p31 - 1 && number.real < 0x1p31;
    if (!fits) number = Number::of(std::numeric_limits<int32_t>::min());
  }
  return made;
}

int64_t integer_power(int64_t a, int64_t b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;
  int64_t made = 1;
  for (; b != 0; b >>= 1, a = times(a, a)) {
    if (b & 1) made = times(made, a);
  }
  return made;
}

/// Folds dimensions, those that the line names by integers.
Operation reduction(double first, Number (*function)(const Number&, const Number&)) {
  return [first, function](const Operands& call) {
    const Value& from = call.value(0);
    Sizes kept = from.sizes;
    for (const int64_t dim : call.line.integers) kept.at(static_cast<size_t>(dim)) = 1;
    Sizes strides = dense_strides(kept);
    for (const int64_t dim : call.line.integers) strides[static_cast<size_t>(dim)] = 0;
    Data made(static_cast<size_t>(count(kept)), first);
    size_t i = 0;
    walk(from.sizes, strides, [&](int64_t place) {
      Number& folded = made[static_cast<size_t>(place)];
      folded = function(folded, from.data[i++]);
    });
    return made;
  };
}

// Of two zeros the first one.
Number larger(const Number& a, const Number& b) { return is_nan(b) || a < b ? b : a; }
Number smaller(const Number& a, const Number& b) { return is_nan(b) || b < a ? b : a; }

/// A number or an integer.
Data full(const Operands& call) {
  const Number number = call.line.integers.empty() ? Number(call.line.numbers.at(0)) : Number::of(call.integer(0));
  return Data(static_cast<size_t>(count(call.line.sizes)), number);
}

Data iota(const Operands& call) {
  Data made(static_cast<size_t>(count(call.line.sizes)));
  for (size_t i = 0; i < made.size(); ++i) {
    made[i] = Number::of(call.integer(0) + static_cast<int64_t>(i) * call.integer(1));
  }
  return made;
}

/// How long the first value is along a dimension.
Data length(const Operands& call) { return {Number::of(call.value(0).sizes.at(static_cast<size_t>(call.integer(0))))}; }

Data same(const Operands& call) { return call.value(0).data; }

Data where(const Operands& call) {
  Data made = call.value(2).data;
  for (size_t i = 0; i < made.size(); ++i) {
    if (is_true(call.value(0).data.at(i))) made[i] = call.value(1).data.at(i);
  }
  return made;
}

/// The elements of the first value that these strides lead to.
Data picked(const Operands& call, const Sizes& strides, int64_t begin = 0) {
  Data made;
  walk(call.line.sizes, strides,
       [&](int64_t place) { made.push_back(call.value(0).data.at(static_cast<size_t>(begin + place))); });
  return made;
}

Data permute(const Operands& call) {
  const Sizes given = dense_strides(call.value(0).sizes);
  Sizes strides;
  for (const int64_t dim : call.line.integers) strides.push_back(given.at(static_cast<size_t>(dim)));
  return picked(call, strides);
}

Data broadcast(const Operands& call) {
  const Sizes &from = call.value(0).sizes, given = dense_strides(from);
  Sizes strides(call.line.sizes.size(), 0);
  for (size_t d = from.size(), to = strides.size(); d-- > 0;) strides.at(--to) = from[d] == 1 ? 0 : given[d];
  return picked(call, strides);
}

/// Every `step`th along `dim` from `start` on, so many as the result has.
Data slice(const Operands& call) {
  Sizes strides = dense_strides(call.value(0).sizes);
  int64_t& along = strides.at(static_cast<size_t>(call.integer(0)));
  const int64_t begin = along * call.integer(1);
  along *= call.integer(2);
  return picked(call, strides, begin);
}

/// The first value with the second in such a place.
Data update(const Operands& call) {
  Data made = call.value(0).data;
  Sizes strides = dense_strides(call.value(0).sizes);
  int64_t& along = strides.at(static_cast<size_t>(call.integer(0)));
  const int64_t begin = along * call.integer(1);
  along *= call.integer(2);
  size_t i = 0;
  walk(call.value(1).sizes, strides,
       [&](int64_t place) { made.at(static_cast<size_t>(begin + place)) = call.value(1).data[i++]; });
  return made;
}

Data concatenate(const Operands& call) {
  const Split to(call.line.sizes, call.integer(0));
  Data made(static_cast<size_t>(count(call.line.sizes)));
  int64_t begin = 0;
  for (const Value* part : call.values) {
    const Split from(part->sizes, call.integer(0));
    for (int64_t i = 0; i < from.before; ++i) {
      const auto source = part->data.begin() + i * from.along * from.behind;
      std::copy(source, source + from.along * from.behind, made.begin() + to.at(i, begin, 0));
    }
    begin += from.along;
  }
  return made;
}

/// Along a dimension, the elements of the first value that the second numbers: `index_select` of an index of any rank.
Data take(const Operands& call) {
  const Value& index = call.value(1);
  const Split from(call.value(0).sizes, call.integer(0));
  Data made;
  for (int64_t i = 0; i < from.before; ++i) {
    for (const Number& number : index.data) {
      const int64_t row = checked(number.integer, call.value(0).sizes, call.integer(0));
      const auto source = call.value(0).data.begin() + from.at(i, row, 0);
      made.insert(made.end(), source, source + from.behind);
    }
  }
  return made;
}

/// The first value, to which the third is added where `take` would have read it.
Data put_add(const Operands& call) {
  const Value& index = call.value(1);
  const Split to(call.value(0).sizes, call.integer(0));
  Data made = call.value(0).data;
  auto source = call.value(2).data.begin();
  for (int64_t i = 0; i < to.before; ++i) {
    for (const Number& number : index.data) {
      const int64_t row = checked(number.integer, call.value(0).sizes, call.integer(0));
      for (int64_t k = 0; k < to.behind; ++k) {
        Number& sum = made[static_cast<size_t>(to.at(i, row, k))];
        sum = sum + *source++;
      }
    }
  }
  return made;
}

/// Calls `use(place in the first value, place in the index)` as `torch.gather` reads.
template <typename Use>
void each_gathered(const Operands& call, Use use) {
  const Value &target = call.value(0), &index = call.value(1);
  const auto dim = static_cast<size_t>(call.integer(0));
  Sizes strides = dense_strides(target.sizes);
  const int64_t along = strides.at(dim);
  strides[dim] = 0;
  size_t i = 0;
  walk(index.sizes, strides, [&](int64_t place) {
    const int64_t row = checked(index.data[i].integer, target.sizes, call.integer(0));
    use(static_cast<size_t>(place + row * along), i++);
  });
}

Data gather(const Operands& call) {
  Data made(call.value(1).data.size());
  each_gathered(call, [&](size_t from, size_t to) { made[to] = call.value(0).data.at(from); });
  return made;
}

Data scatter_add(const Operands& call) {
  Data made = call.value(0).data;
  each_gathered(call, [&](size_t to, size_t from) { made.at(to) = made.at(to) + call.value(2).data.at(from); });
  return made;
}

Data scatter(const Operands& call) {
  Data made = call.value(0).data;
  each_gathered(call, [&](size_t to, size_t from) { made.at(to) = call.value(2).data.at(from); });
  return made;
}

/// The elements in one form.
template <typename T>
std::vector<T> in_form(const Data& data, T Number::* form) {
  std::vector<T> made(data.size());
  std::transform(data.begin(), data.end(), made.begin(), [form](const Number& number) { return number.*form; });
  return made;
}
Data of_form(const std::vector<double>& numbers) { return {numbers.begin(), numbers.end()}; }
Data of_form(const std::vector<int64_t>& integers) {
  Data made(integers.size());
  std::transform(integers.begin(), integers.end(), made.begin(), Number::of);
  return made;
}

/// Sums of products of elements of the two values in the form that the line's dtype has: `add(left, right, sums)`.
template <typename Add>
Data sums_of_products(const Operands& call, Add add) {
  const auto summed = [&](auto form) {
    const auto left = in_form(call.value(0).data, form), right = in_form(call.value(1).data, form);
    auto sums = left;
    sums.assign(static_cast<size_t>(count(call.line.sizes)), 0);
    add(left, right, sums);
    return of_form(sums);
  };
  return is_integer(call.line.dtype) ? summed(&Number::integer) : summed(&Number::real);
}

/// Products of batches of matrices.
Data matmul(const Operands& call) {
  const Sizes &a = call.value(0).sizes, &b = call.value(1).sizes;
  const int64_t batches = a.at(0), rows = a.at(1), inner = a.at(2), columns = b.at(2);
  return sums_of_products(call, [&](const auto& left, const auto& right, auto& sums) {
    for (int64_t row = 0; row < batches * rows; ++row) {
      const auto* from = left.data() + row * inner;
      const auto* with = right.data() + row / rows * inner * columns;
      auto* to = sums.data() + row * columns;
      for (int64_t k = 0; k < inner; ++k) {
        for (int64_t j = 0; j < columns; ++j) to[j] = plus(to[j], times(from[k], with[k * columns + j]));
      }
    }
  });
}

/// Calls `use(place in x, place in w, place in y)` for each product of a convolution in two dimensions of `x` with `w`
/// to `y`. The line's integers: strides, padding and dilation of two dimensions, and groups.
template <typename Use>
void each_product(const Operands& call, const Sizes& x, const Sizes& w, const Sizes& y, Use use) {
  const int64_t groups = call.integer(6), outputs = y.at(1) / groups;
  const auto inside = [&](int d, int64_t out, int64_t k, int64_t& in) {
    in = out * call.integer(d) - call.integer(2 + d) + k * call.integer(4 + d);
    return in >= 0 && in < x[static_cast<size_t>(2 + d)];
  };
  int64_t row, column;
  for (int64_t n = 0; n < y[0]; ++n)
    for (int64_t o = 0; o < y[1]; ++o)
      for (int64_t c = 0; c < w[1]; ++c)
        for (int64_t i = 0; i < y[2]; ++i)
          for (int64_t ki = 0; ki < w[2]; ++ki) {
            if (!inside(0, i, ki, row)) continue;
            for (int64_t j = 0; j < y[3]; ++j)
              for (int64_t kj = 0; kj < w[3]; ++kj) {
                if (!inside(1, j, kj, column)) continue;
                const int64_t channel = o / outputs * w[1] + c;
                use(static_cast<size_t>(((n * x[1] + channel) * x[2] + row) * x[3] + column),
                    static_cast<size_t>(((o * w[1] + c) * w[2] + ki) * w[3] + kj),
                    static_cast<size_t>(((n * y[1] + o) * y[2] + i) * y[3] + j));
              }
          }
}

Data convolve(const Operands& call) {
  const Sizes &x = call.value(0).sizes, &w = call.value(1).sizes;
  return sums_of_products(call, [&](const auto& left, const auto& right, auto& sums) {
    each_product(call, x, w, call.line.sizes,
                 [&](size_t i, size_t k, size_t o) { sums[o] = plus(sums[o], times(left[i], right[k])); });
  });
}

/// The gradient of the input, of the result's gradient and the filters.
Data convolve_input(const Operands& call) {
  const Sizes &y = call.value(0).sizes, &w = call.value(1).sizes;
  return sums_of_products(call, [&](const auto& left, const auto& right, auto& sums) {
    each_product(call, call.line.sizes, w, y,
                 [&](size_t i, size_t k, size_t o) { sums[i] = plus(sums[i], times(left[o], right[k])); });
  });
}

/// The gradient of the filters, of the result's gradient and the input.
Data convolve_weight(const Operands& call) {
  const Sizes &y = call.value(0).sizes, &x = call.value(1).sizes;
  return sums_of_products(call, [&](const auto& left, const auto& right, auto& sums) {
    each_product(call, x, call.line.sizes, y,
                 [&](size_t i, size_t k, size_t o) { sums[k] = plus(sums[k], times(left[o], right[i])); });
  });
}

/// Where in its plane the largest element of each window is. The line's integers: size, strides, padding and dilation
/// of windows in two dimensions.
Data largest_in_window(const Operands& call) {
  const Value& from = call.value(0);
  const Sizes &x = from.sizes, &y = call.line.sizes;
  const size_t row = x.size() - 2, column = x.size() - 1;
  const auto at = [&](int d, int64_t out, int64_t k) {
    return out * call.integer(2 + d) - call.integer(4 + d) + k * call.integer(6 + d);
  };
  const int64_t pixels = x.at(row) * x.at(column);
  Data made;
  for (auto plane = from.data.begin(); plane != from.data.end(); plane += pixels)
    for (int64_t i = 0; i < y.at(row); ++i)
      for (int64_t j = 0; j < y.at(column); ++j) {
        int64_t best = -1;
        for (int64_t ki = 0; ki < call.integer(0); ++ki)
          for (int64_t kj = 0; kj < call.integer(1); ++kj) {
            const int64_t r = at(0, i, ki), c = at(1, j, kj);
            if (r < 0 || r >= x[row] || c < 0 || c >= x[column]) continue;
            const Number& element = plane[r * x[column] + c];
            if (best < 0 || plane[best] < element || is_nan(element)) best = r * x[column] + c;
          }
        made.push_back(Number::of(best));
      }
  return made;
}

/// Where along a dimension the largest element is.
Data argmax(const Operands& call) {
  const Value& from = call.value(0);
  const Split split(from.sizes, call.integer(0));
  Data made;
  for (int64_t i = 0; i < split.before; ++i) {
    for (int64_t k = 0; k < split.behind; ++k) {
      int64_t best = 0;
      const auto at = [&](int64_t j) { return from.data[static_cast<size_t>(split.at(i, j, k))]; };
      for (int64_t j = 1; j < split.along; ++j) {
        if (at(best) < at(j) || (is_nan(at(j)) && !is_nan(at(best)))) best = j;
      }
      made.push_back(Number::of(best));
    }
  }
  return made;
}

/// Places along a dimension in the order of their elements: NaN is the largest, and equal ones stay as they are.
Data sort(const Operands& call) {
  const Value& from = call.value(0);
  const Split split(from.sizes, call.integer(0));
  const bool descends = call.integer(1) != 0;
  Data made(from.data.size());
  std::vector<int64_t> order(static_cast<size_t>(split.along));
  for (int64_t i = 0; i < split.before; ++i) {
    for (int64_t k = 0; k < split.behind; ++k) {
      const auto is_less = [&](int64_t one, int64_t other) {
        const Number& a = from.data[static_cast<size_t>(split.at(i, one, k))];
        const Number& b = from.data[static_cast<size_t>(split.at(i, other, k))];
        return a < b || (is_nan(b) && !is_nan(a));
      };
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t one, int64_t other) {
        return descends ? is_less(other, one) : is_less(one, other);
      });
      for (int64_t j = 0; j < split.along; ++j) {
        made[static_cast<size_t>(split.at(i, j, k))] = Number::of(order[static_cast<size_t>(j)]);
      }
    }
  }
  return made;
}

Data cumulate(const Operands& call) {
  Data made = call.value(0).data;
  const Split split(call.value(0).sizes, call.integer(0));
  for (int64_t i = 0; i < split.before; ++i) {
    for (int64_t j = 1; j < split.along; ++j) {
      for (int64_t k = 0; k < split.behind; ++k) {
        Number& sum = made[static_cast<size_t>(split.at(i, j, k))];
        sum = made[static_cast<size_t>(split.at(i, j - 1, k))] + sum;
      }
    }
  }
  return made;
}

/// 64 random bits for each number (SplitMix64), of the seed that the line reads.
class Bits {
 public:
  explicit Bits(const Operands& call) : seed_(std::hash<double>()(call.value(0).data.at(0).real)) {}
  uint64_t operator()(uint64_t number) const {
    uint64_t bits = seed_ + (number + 1) * 0x9e3779b97f4a7c15;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    return bits ^ (bits >> 31);
  }
  /// In [0, 1), as many digits as a float has.
  double uniform(uint64_t number) const { return static_cast<double>((*this)(number) >> 40) * 0x1p-24; }

 private:
  uint64_t seed_;
};

template <typename Draw>
Data drawn(const Operands& call, Draw draw) {
  Data made(static_cast<size_t>(count(call.line.sizes)));
  for (size_t i = 0; i < made.size(); ++i) made[i] = draw(i);
  return made;
}

Data uniform(const Operands& call) {
  return drawn(call, [bits = Bits(call)](size_t i) { return bits.uniform(i); });
}

Data normal(const Operands& call) {
  return drawn(call, [bits = Bits(call)](size_t i) {
    const double radius = std::sqrt(-2 * std::log(1 - bits.uniform(2 * i)));
    return radius * std::cos(6.283185307179586 * bits.uniform(2 * i + 1));
  });
}

/// From the first integer on, as many as the second says.
Data random_integer(const Operands& call) {
  const auto range = static_cast<uint64_t>(std::max<int64_t>(call.integer(1), 1));
  return drawn(call, [&call, range, bits = Bits(call)](size_t i) {
    return Number::of(call.integer(0) + static_cast<int64_t>(bits(i) % range));
  });
}

const std::map<std::string, Operation>& operations() {
  static const std::map<std::string, Operation> kOperations = {
      {"full", full},
      {"iota", iota},
      {"size", length},
      {"cast", same},
      {"hang", same},
      {"reshape", same},
      {"result", same},
      {"where", where},
      {"permute", permute},
      {"broadcast", broadcast},
      {"slice", slice},
      {"update", update},
      {"concatenate", concatenate},
      {"take", take},
      {"put_add", put_add},
      {"gather", gather},
      {"scatter", scatter},
      {"scatter_add", scatter_add},
      {"matmul", matmul},
      {"convolve", convolve},
      {"convolve_input", convolve_input},
      {"convolve_weight", convolve_weight},
      {"argmax", argmax},
      {"largest_in_window", largest_in_window},
      {"sort", sort},
      {"cumulate", cumulate},
      {"uniform", uniform},
      {"normal", normal},
      {"random_integer", random_integer},
      {"sum", reduction(0, [](const Number& a, const Number& b) { return a + b; })},
      {"product", reduction(1, [](const Number& a, const Number& b) { return a * b; })},
      {"largest", reduction(-INFINITY, larger)},
      {"smallest", reduction(INFINITY, smaller)},
      {"abs", each([](const Number& a) { return a.real < 0 ? -a : both(std::fabs(a.real), a.integer); })},
      {"ceil", unary(std::ceil)},
      {"cos", unary(std::cos)},
      {"erf", unary(std::erf)},
      {"exp", unary(std::exp)},
      {"expm1", unary(std::expm1)},
      {"floor", unary(std::floor)},
      {"log", unary(std::log)},
      {"log1p", unary(std::log1p)},
      {"negate", each([](const Number& a) { return -a; })},
      {"not", unary([](double a) { return a == 0 ? 1.0 : 0.0; })},
      {"round", unary(std::nearbyint)},
      {"rsqrt", unary([](double a) { return 1 / std::sqrt(a); })},
      {"sigmoid", unary([](double a) { return 1 / (1 + std::exp(-a)); })},
      {"sign", unary([](double a) { return (a > 0) - (a < 0) + 0.0; })},  // of NaN 0, as PyTorch's CPU has it
      {"sin", unary(std::sin)},
      {"sqrt", unary(std::sqrt)},
      {"tanh", unary(std::tanh)},
      {"trunc", unary(std::trunc)},
      {"add", binary([](const Number& a, const Number& b) { return a + b; })},
      {"subtract", binary([](const Number& a, const Number& b) { return a - b; })},
      {"multiply_add", multiply_add},
      {"to_integer", to_integer},
      {"multiply", binary([](const Number& a, const Number& b) { return a * b; })},
      {"divide", binary([](const Number& a, const Number& b) { return Number(a.real / b.real); })},
      {"floor_divide", floor_divide},
      {"trunc_divide", by_kind([](double a, double b) { return std::trunc(a / b); }, quotient)},
      {"power", by_kind(std::pow, integer_power)},
      {"maximum", binary(larger)},
      {"minimum", binary(smaller)},
      {"equal", truth([](const Number& a, const Number& b) { return a == b; })},
      {"not_equal", truth([](const Number& a, const Number& b) { return !(a == b); })},
      {"less", truth([](const Number& a, const Number& b) { return a < b; })},
      {"less_equal", truth([](const Number& a, const Number& b) { return a < b || a == b; })},
      {"greater", truth([](const Number& a, const Number& b) { return b < a; })},
      {"greater_equal", truth([](const Number& a, const Number& b) { return b < a || a == b; })},
      {"and", truth([](const Number& a, const Number& b) { return is_true(a) && is_true(b); })},
      {"bits_and", bits([](int64_t a, int64_t b) { return a & b; })},
      {"bits_or", bits([](int64_t a, int64_t b) { return a | b; })},
      {"bits_xor", bits([](int64_t a, int64_t b) { return a ^ b; })},
      {"or", truth([](const Number& a, const Number& b) { return is_true(a) || is_true(b); })},
  };
  return kOperations;
}

/// The line with all its integers. Throws std::length_error for a negative size.
Instruction completed(Instruction line, const std::vector<Value>& values) {
  const auto integer = [&](size_t value) { return values.at(value).data.at(0).integer; };
  for (const auto& later : line.later_integers) line.integers[later.place] = integer(later.value);
  for (const auto& later : line.later_sizes) {
    line.sizes[later.place] = integer(later.value);
    if (line.sizes[later.place] < 0) throw std::length_error("a negative size in an executable");
  }
  return line;
}

Sizes sizes_of(const ob_operand& tensor) { return {tensor.sizes, tensor.sizes + tensor.count}; }

Value load(const ob_operand& operand) {
  if (operand.kind == OB_OPERAND_NUMBER) return {{}, {Number(operand.number)}};
  if (operand.kind == OB_OPERAND_INTEGER) return {{}, {Number::of(operand.integer)}};
  const Type& type = type_of(operand.dtype);
  Value value{sizes_of(operand), {}};
  const auto* const data = reinterpret_cast<const char*>(operand.data);
  walk(value.sizes, {operand.strides, operand.strides + operand.count},
       [&](int64_t place) { value.data.push_back(type.load(data + place * type.bytes)); });
  return value;
}

void store(const Value& value, const ob_operand& operand) {
  const Type& type = type_of(operand.dtype);
  auto* const data = reinterpret_cast<char*>(operand.data);
  size_t i = 0;
  walk(value.sizes, {operand.strides, operand.strides + operand.count},
       [&](int64_t place) { type.store(data + place * type.bytes, value.data[i++]); });
}

/// What a line makes of the values before it.
Value computed(const Instruction& line, const std::vector<Value>& values) {
  Operands call{line, {}};
  for (const size_t number : line.values) call.values.push_back(&values[number]);
  Value made{line.sizes, operations().at(line.operation)(call)};
  if (static_cast<int64_t>(made.data.size()) != count(line.sizes)) {
    throw std::length_error("a result of other sizes than the executable says, of " + line.operation);
  }
  for (Number& element : made.data) element = rounded(line.dtype, element);
  return made;
}

}  // namespace

Number::Number(double number)
    : real(number),
      integer(number >= -0x1p63 && number < 0x1p63 ? static_cast<int64_t>(number)
                                                   : std::numeric_limits<int64_t>::min()) {}

Number Number::of(int64_t integer) {
  Number made(static_cast<double>(integer));
  made.integer = integer;
  return made;
}

uint64_t bytes_of(const ob_operand& tensor) {
  int64_t last = 0;
  for (uint32_t d = 0; d < tensor.count; ++d) last += (tensor.sizes[d] - 1) * tensor.strides[d];
  return static_cast<uint64_t>(last + 1) * type_of(tensor.dtype).bytes;
}

Program::Program(const std::string& text) {
  const size_t begin = text.find('\n') + 1;
  char expected[64];
  std::snprintf(expected, sizeof(expected), "%s %016llx\n", kVersion,
                static_cast<unsigned long long>(checksum(text.data() + begin, text.size() - begin)));
  if (text.compare(0, begin, expected) != 0) damaged("its first line is no " + std::string(kVersion) + " of the rest");
  std::stringstream lines(text.substr(begin));
  for (std::string line; std::getline(lines, line);) read(line);
  for_steps_ = needed_by_steps();
}

std::vector<bool> Program::needed_by_steps() const {
  std::vector<bool> needed(instructions_.size(), false);
  for (const Planned& planned : steps_) {
    for (const auto& later : planned.later) needed[later.value] = true;
  }
  for (size_t i = instructions_.size(); i-- > 0;) {
    if (!needed[i]) continue;
    for (const size_t value : instructions_[i].values) needed[value] = true;
    for (const auto& later : instructions_[i].later_sizes) needed[later.value] = true;
    for (const auto& later : instructions_[i].later_integers) needed[later.value] = true;
  }
  return needed;
}

std::vector<Value> Program::values_of_steps(const std::vector<ob_operand>& operands) const {
  std::vector<Value> values(instructions_.size());
  for (size_t i = 0, input = 0; i < instructions_.size(); ++i) {
    const bool is_input = instructions_[i].operation == "input";
    if (is_input) ++input;
    if (!for_steps_[i]) continue;
    if (!is_input) {
      values[i] = computed(completed(instructions_[i], values), values);
    } else if (const ob_operand& operand = operands[input - 1]; operand.kind == OB_OPERAND_TENSOR) {
      values[i] = {sizes_of(operand), {}};
    } else {
      values[i] = load(operand);
    }
  }
  return values;
}

std::vector<Step> Program::steps(const std::vector<ob_operand>& operands) const {
  if (!steps_.empty()) {
    const std::vector<Value> values = values_of_steps(operands);
    std::vector<Step> made;
    for (Planned planned : steps_) {
      for (const auto& later : planned.later) planned.numbers[later.place] = values[later.value].data.at(0).real;
      const auto [flops, read, written] = planned.numbers;
      made.push_back({planned.name, planned.dtype, flops, static_cast<uint64_t>(read), static_cast<uint64_t>(written)});
    }
    return made;
  }
  Step step{"executable", "float32", 0, 0, 0};
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].kind != OB_OPERAND_TENSOR) continue;
    (i < inputs_.size() ? step.read : step.written) +=
        static_cast<uint64_t>(count(sizes_of(operands[i]))) * type_of(operands[i].dtype).bytes;
  }
  return {step};
}

size_t Program::value_of(const std::string& word) {
  const size_t value = std::strtoull(word.c_str() + 1, nullptr, 10);
  if (value >= instructions_.size()) damaged("a value is read before it is made");
  last_use_[value] = instructions_.size();
  return value;
}

void Program::read_step(std::stringstream& words) {
  Planned made;
  words >> made.dtype;
  for (size_t place = 0; place < made.numbers.size(); ++place) {
    std::string word;
    if (!(words >> word)) damaged("a step without numbers");
    if (word[0] == '$') {
      made.later.push_back({place, value_of(word)});
    } else {
      made.numbers[place] = std::strtod(word.c_str(), nullptr);
    }
  }
  std::getline(words >> std::ws, made.name);
  steps_.push_back(made);
}

void Program::read(const std::string& line) {
  std::stringstream words(line);
  Instruction made;
  std::string sizes;
  words >> made.operation;
  if (made.operation == "step") return read_step(words);
  words >> made.dtype >> sizes;
  type_of(made.dtype);
  const size_t place = instructions_.size();
  const auto add_integer = [&](const std::string& word, Sizes& integers, std::vector<Instruction::Later>& later) {
    if (word[0] == '$') later.push_back({integers.size(), value_of(word)});
    integers.push_back(word == "?" ? kAnySize : word[0] == '$' ? 0 : std::strtoll(word.c_str(), nullptr, 10));
  };
  std::stringstream parts(sizes == "-" ? "" : sizes);
  for (std::string part; std::getline(parts, part, 'x');) add_integer(part, made.sizes, made.later_sizes);
  for (std::string word; words >> word;) {
    if (word[0] == '%') {
      made.values.push_back(value_of(word));
    } else if (word[0] == '#') {
      made.numbers.push_back(std::strtod(word.c_str() + 1, nullptr));
    } else {
      add_integer(word, made.integers, made.later_integers);
    }
  }
  if (made.operation == "hang") hangs_ = true;
  if (made.operation == "input") {
    inputs_.push_back(place);
  } else if (operations().count(made.operation) == 0) {
    damaged("no operation " + made.operation);
  }
  if (made.operation == "result") results_.push_back(place);
  instructions_.push_back(std::move(made));
  last_use_.push_back(place);
}

std::string Program::problem(const std::vector<ob_operand>& operands) const {
  if (operands.size() != inputs_.size() + results_.size()) return "another number of operands than it was compiled for";
  for (size_t i = 0; i < operands.size(); ++i) {
    const bool is_result = i >= inputs_.size();
    const Instruction& line = instructions_[is_result ? results_[i - inputs_.size()] : inputs_[i]];
    const ob_operand& operand = operands[i];
    if (operand.kind != OB_OPERAND_TENSOR && !is_result && line.sizes.empty()) continue;
    const auto fits_size = [](int64_t wanted, int64_t given) { return wanted == kAnySize || wanted == given; };
    const bool fits =
        operand.kind == OB_OPERAND_TENSOR && operand.dtype == line.dtype && line.sizes.size() == operand.count &&
        (!line.later_sizes.empty() || std::equal(line.sizes.begin(), line.sizes.end(), operand.sizes, fits_size));
    if (!fits) return "operand " + std::to_string(i) + " is not as it was when the graph was compiled";
  }
  return "";
}

void Program::run(const std::vector<ob_operand>& operands) const {
  std::vector<Value> values(instructions_.size());
  size_t input = 0, result = inputs_.size();
  for (size_t i = 0; i < instructions_.size(); ++i) {
    if (instructions_[i].operation == "input") {
      values[i] = load(operands[input++]);
      continue;
    }
    const Instruction line = completed(instructions_[i], values);
    values[i] = computed(line, values);
    if (line.operation == "result") {
      const ob_operand& operand = operands[result++];
      if (!std::equal(line.sizes.begin(), line.sizes.end(), operand.sizes)) {
        throw std::length_error("a result of other sizes than the caller has memory for");
      }
    }
    const auto forget = [&](size_t number) {
      if (last_use_[number] == i) values[number] = {};
    };
    for (const size_t number : line.values) forget(number);
    for (const auto& later : line.later_sizes) forget(later.value);
    for (const auto& later : line.later_integers) forget(later.value);
  }
  for (size_t i = 0; i < results_.size(); ++i) store(values[results_[i]], operands[inputs_.size() + i]);
}

}  // namespace outboard::sim
