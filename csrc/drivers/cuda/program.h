// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cuda/device.h"

/// A kernel lives as long as its program.
struct ob_kernel_t {
  ob_device device;
  std::string name;
  outboard::cuda::CUfunction function = nullptr;
  uint32_t most_items = 0;      // in a work-group
  uint64_t local_memory = 0;    // bytes of a work-group
  bool knows_sizes = false;     // whether `sizes` is known: NVIDIA drivers since CUDA 12.4 tell it
  std::vector<uint32_t> sizes;  // bytes of each argument
};

struct ob_program_t {
  ob_device device;
  std::string code;  // machine code or PTX
  outboard::cuda::CUmodule module = nullptr;
  std::mutex mutex;  // guards `kernels`
  std::unordered_map<std::string, std::unique_ptr<ob_kernel_t>> kernels;
};

namespace outboard::cuda {

/// A program as it is kept: a line with the format's name, one with the checksum of what follows, one with the
/// architecture, and the code.
std::string to_binary(const std::string& architecture, const std::string& code);
/// The code in a binary. Throws std::invalid_argument if it is something else, damaged, or for other devices.
std::string code_in(std::string_view binary, const std::string& architecture);

/// Loads code. The device's context must be the thread's.
ob_status load_program(ob_device device, std::string code, ob_program* program);
ob_status find_kernel(ob_program program, const std::string& name, ob_kernel* kernel);

/// Work-groups of a launch, as the API wants them.
struct Grid {
  unsigned groups[3], items[3];
};

/// How to launch a kernel for so many work-items; local[0] = 0 leaves the size of groups open. Throws
/// std::invalid_argument that says why it cannot be.
Grid grid_of(const ob_kernel_t& kernel, const uint64_t global[3], const uint32_t local[3]);

/// What is wrong with arguments, as far as the NVIDIA driver knows what a kernel takes; an empty text if nothing is.
std::string problem_with(const ob_kernel_t& kernel, const ob_argument* arguments, uint32_t count);

}  // namespace outboard::cuda
