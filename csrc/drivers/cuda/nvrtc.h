// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "common/table.h"

namespace outboard::cuda {

using common::BuildError;

/// How to compile for a device.
struct Architecture {
  int number = 0;        // 90 for compute capability 9.0
  bool machine = false;  // machine code, which a device of this or a later minor version runs; else PTX
  /// What NVRTC calls it: "sm_90" or "compute_90".
  std::string name() const { return (machine ? "sm_" : "compute_") + std::to_string(number); }
};

/// NVRTC, NVIDIA's compiler of CUDA C++, loaded at run time. Thread-safe, as NVRTC is.
class Nvrtc {
 public:
  /// The library that OUTBOARD_CUDA_NVRTC names, or libnvrtc of version 13 or 12 where the dynamic linker looks. Throws
  /// std::runtime_error that says what to install.
  static Nvrtc find();

  /// "NVRTC 13.0", for instance.
  std::string version() const { return "NVRTC " + std::to_string(major_) + "." + std::to_string(minor_); }
  /// As cuDriverGetVersion counts: 13000 for 13.0.
  int number() const { return 1000 * major_ + 10 * minor_; }

  /// The newest architecture whose code a device runs, by the number of its compute capability. `number` is 0 if the
  /// device is older than all that NVRTC knows.
  Architecture architecture_for(int capability) const;
  /// The oldest device that it compiles for, by the number of its compute capability.
  int oldest() const { return architectures_.front(); }

  /// Machine code, or PTX with its final zero. `options` are NVRTC's, separated by spaces, beside those that programs
  /// of Outboard's need. Throws BuildError with the compiler's messages.
  std::string build(const std::string& source, const std::string& options, const Architecture& architecture) const;

 private:
  using Program = struct ProgramHandle*;

  Nvrtc() = default;
  void load(void* library);
  void check(int result, const char* function) const;
  std::string log_of(Program program) const;

  int (*nvrtcVersion)(int* major, int* minor) = nullptr;
  int (*nvrtcGetNumSupportedArchs)(int* count) = nullptr;
  int (*nvrtcGetSupportedArchs)(int* architectures) = nullptr;
  const char* (*nvrtcGetErrorString)(int result) = nullptr;
  int (*nvrtcCreateProgram)(Program* program, const char* source, const char* name, int headers,
                            const char* const* texts, const char* const* names) = nullptr;
  int (*nvrtcDestroyProgram)(Program* program) = nullptr;
  int (*nvrtcCompileProgram)(Program program, int count, const char* const* options) = nullptr;
  int (*nvrtcGetProgramLogSize)(Program program, size_t* bytes) = nullptr;
  int (*nvrtcGetProgramLog)(Program program, char* log) = nullptr;
  int (*nvrtcGetCUBINSize)(Program program, size_t* bytes) = nullptr;
  int (*nvrtcGetCUBIN)(Program program, char* code) = nullptr;
  int (*nvrtcGetPTXSize)(Program program, size_t* bytes) = nullptr;
  int (*nvrtcGetPTX)(Program program, char* code) = nullptr;

  int major_ = 0, minor_ = 0;
  std::vector<int> architectures_;  // ascending, one at least
};

}  // namespace outboard::cuda
