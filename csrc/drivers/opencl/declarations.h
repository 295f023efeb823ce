// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace outboard::opencl {

/// The declarations of OpenCL C's built-in functions, some 17,000, that clang reads for every program. It takes longer
/// over them than over most of our programs; so this gives a program those it uses, from the header that the compiler
/// would read, and keeps it from reading that. Immutable, thus thread-safe.
class Declarations {
 public:
  /// Reads clang's header `opencl-c.h`. Empty if that is not a header that this class understands.
  explicit Declarations(const std::string& text);
  /// Those of the PoCL that this process has loaded, read once; empty if its header is not found.
  static const Declarations& of_pocl();

  bool empty() const { return lines_.empty(); }
  /// The source with all that it needs before it, for a build with `kOption`. The lines of the source keep their
  /// numbers.
  std::string prepend(const std::string& source) const;
  /// Keeps the compiler from reading its header: its include guard.
  static constexpr const char* kOption = " -D_OPENCL_H_";

 private:
  struct Line {
    std::string text;
    bool always;  // a directive of the preprocessor
  };

  void add_declaration(const std::string& text);

  std::vector<Line> lines_;
  std::unordered_map<std::string, std::vector<size_t>> by_name_;
};

}  // namespace outboard::opencl
