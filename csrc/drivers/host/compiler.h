// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "host/instructions.h"

namespace outboard::host {

/// Machine code of a program.
struct Code {
  std::vector<KernelInterface> kernels;
  std::string library;  // an ELF image, for `common::KernelLibrary`
  std::string needs;    // the processors that it runs on: `Compiler::makes`
};

/// Clang and LLD, which make machine code of OpenCL C or CUDA C++ for the processor that this process runs on: those in
/// the Python package ziglang, or installed ones. Thread-safe: a build is three processes, one after another.
class Compiler {
 public:
  /// The one that OUTBOARD_HOST_COMPILER names (a path of Clang or of Zig), or the first on PATH. Throws
  /// std::runtime_error that says what to install.
  static Compiler find(Language language);

  Language language() const { return language_; }
  /// Builds a program. `options` are those of clBuildProgram. Throws BuildError, and std::system_error if the compiler
  /// cannot be run.
  Code build(const std::string& source, const std::string& options) const;

  /// "clang 22.1.8", for instance.
  const std::string& version() const { return version_; }
  /// Floats in a vector register of the processor.
  uint32_t vector_width() const;
  /// Whether the processor computes in half precision.
  bool has_fp16() const;
  /// Text that differs wherever code made by one compiler and processor does not fit another.
  const std::string& fingerprint() const { return fingerprint_; }
  /// The processors that can run what is built: a level of the psABI (x86-64-v3, for instance) where
  /// OUTBOARD_HOST_MARCH asks for one, else those with the same fingerprint.
  const std::string& makes() const { return makes_; }
  /// Whether code that another compiler made runs on this one's processor, by what that one `makes`.
  bool can_run(const std::string& needs) const;

 private:
  Compiler(Language language, std::vector<std::string> clang, std::vector<std::string> linker);
  /// The macros that Clang defines for a processor, a line each.
  std::string macros_of(const std::string& processor) const;
  bool defines(const std::string& macro) const;
  std::string run(std::vector<std::string> words, const std::string& input) const;
  /// LLVM's assembly of a program.
  std::string front_end(const std::string& source, const std::string& options) const;
  std::string cuda_front_end(const std::string& source, const std::string& options) const;
  std::vector<std::string> clang(std::initializer_list<const char*> words) const;

  const Language language_;
  const std::vector<std::string> clang_, linker_;
  std::vector<std::string> target_;  // options that name the processor
  std::string macros_;
  std::string version_, fingerprint_, makes_;
};

}  // namespace outboard::host
