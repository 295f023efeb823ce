// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/table.h"

namespace outboard::host {

using common::BuildError;

/// The languages that programs are written in.
enum class Language { opencl, cuda };

/// What has to be known of a kernel to run it.
struct KernelInterface {
  std::string name;
  std::vector<uint32_t> value_bytes;            // of each argument; 0 for pointers
  uint32_t required_local_size[3] = {0, 0, 0};  // 0 where the kernel takes any
  uint64_t local_bytes = 0;                     // of its arrays in local memory
  bool has_barriers = false;                    // work-items may have to wait for others
};

/// The name under which machine code exports a kernel's `RunGroups`.
std::string run_symbol(const std::string& kernel);

/// Turns what Clang's front end makes of a program, LLVM's assembly language, into what can be run: arrays
/// in local memory become those of the thread, which runs one group at a time; nothing is exported but a function for
/// each kernel that runs some of its groups. Throws std::runtime_error where a kernel takes what no launch can give.
std::string make_runnable(const std::string& assembly, Language language, std::vector<KernelInterface>* kernels);

}  // namespace outboard::host
