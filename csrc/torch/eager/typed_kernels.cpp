// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/typed_kernels.h"

#include <ATen/core/op_registration/infer_schema.h>

#include <type_traits>

#include "torch/eager/eager.h"

namespace outboard::aten {
namespace {

using T = const at::Tensor&;
using W = at::Tensor&;  // written
using N = const at::Scalar&;
using Dtype = std::optional<at::ScalarType>;

template <typename Signature>
struct TypedKernel;

/// Whether each argument that the operator writes to is a plain reference, and no other is.
template <typename... Args>
bool writes_match(const Operator& op) {
  constexpr bool kWritten[] = {std::is_same_v<Args, W>...};
  return std::equal(op.written.begin(), op.written.end(), std::begin(kWritten), std::end(kWritten));
}

bool same_types(const std::vector<c10::Argument>& left, const std::vector<c10::Argument>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const auto& a, const auto& b) { return *a.real_type() == *b.real_type(); });
}

/// Whether the schema says what the C++ types say.
template <typename Return, typename... Args>
bool is_schema_of(const Operator& op) {
  const auto typed = c10::detail::inferFunctionSchemaFromFunctor<Return(Args...)>();
  const c10::FunctionSchema& schema = op.handle.schema();
  return same_types(schema.arguments(), typed->arguments()) && same_types(schema.returns(), typed->returns()) &&
         writes_match<Args...>(op);
}

/// Returns one new tensor.
template <typename... Args>
struct TypedKernel<at::Tensor(Args...)> {
  static std::optional<torch::CppFunction> of(const Operator& op) {
    if (!is_schema_of<at::Tensor, Args...>(op) || op.aliased_argument.front() >= 0) return std::nullopt;
    return torch::CppFunction([&op](Args... args) {
      c10::IValue values[] = {lend(args)...};
      Arguments arguments(values, sizeof...(Args), Arguments::kLent);
      return eager_tensor(op, arguments);
    });
  }
};

/// Writes to its first argument and returns that.
template <typename... Rest>
struct TypedKernel<at::Tensor&(W, Rest...)> {
  static std::optional<torch::CppFunction> of(const Operator& op) {
    if (!is_schema_of<at::Tensor, W, Rest...>(op) || op.aliased_argument.front() != 0) return std::nullopt;
    return torch::CppFunction([&op](W self, Rest... rest) -> at::Tensor& {
      c10::IValue values[] = {lend(self), lend(rest)...};
      Arguments arguments(values, 1 + sizeof...(Rest), Arguments::kLent);
      eager_write(op, arguments);
      return self;
    });
  }
};

template <typename... Signatures>
std::optional<torch::CppFunction> first_of(const Operator& op) {
  std::optional<torch::CppFunction> kernel;
  const auto is_one = [&](std::optional<torch::CppFunction> made) {
    if (made) kernel.emplace(std::move(*made));
    return kernel.has_value();
  };
  static_cast<void>((is_one(TypedKernel<Signatures>::of(op)) || ...));
  return kernel;
}

}  // namespace

std::optional<torch::CppFunction> typed_kernel(const Operator& op) {
  return first_of<at::Tensor(T), at::Tensor(T, T), at::Tensor(T, N), at::Tensor(T, T, N), at::Tensor(T, N, N),
                  at::Tensor(T, T, T), at::Tensor(T, T, T, N, N), at::Tensor(T, int64_t, bool),
                  at::Tensor(T, T, int64_t, at::ScalarType), at::Tensor(T, Dtype), at::Tensor(T, c10::string_view),
                  at::Tensor(T, T, c10::string_view), at::Tensor(T, T, N, bool), at::Tensor&(W), at::Tensor&(W, T),
                  at::Tensor&(W, N), at::Tensor&(W, T, N), at::Tensor&(W, N, N), at::Tensor&(W, T, T, N)>(op);
}

}  // namespace outboard::aten
