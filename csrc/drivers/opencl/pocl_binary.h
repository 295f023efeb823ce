// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace outboard::opencl {

/// What PoCL 3.1 returns for CL_PROGRAM_BINARIES (its format 9): besides the program's bitcode, each kernel's machine
/// code as a shared library. See PoCL's `lib/CL/pocl_binary.c`.
struct PoclBinary {
  struct Kernel {
    std::string name;
    uint32_t arguments;
    std::vector<uint64_t> locals;     // bytes of each array in local memory that the kernel declares
    uint64_t required_local_size[3];  // 0 where the kernel takes any
    std::string_view library;         // an ELF image for any local size, within the binary; empty if there is none
  };

  /// The kernels of a binary, which must outlive them. Empty if the binary is not of this format.
  static std::vector<Kernel> kernels(std::string_view binary);
};

/// Whether a 64-bit ELF image reaches to the end of what its headers describe. PoCL collects libraries from files that
/// other processes may be writing; the system would load one that is cut short, with zeros in the place of the rest of
/// a page.
bool is_whole_library(std::string_view image);

}  // namespace outboard::opencl
