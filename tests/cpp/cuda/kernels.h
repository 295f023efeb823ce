// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/// Kernels of the simulated device: CUDA C++ that the host driver compiles for the processor and runs there.
namespace simulator {

struct Kernel {
  std::string name;
  void* handle = nullptr;        // the host driver's
  std::vector<uint32_t> sizes;   // bytes of each argument
  std::vector<bool> is_pointer;  // of each argument
  uint64_t local_bytes = 0;
};

struct Program {
  std::vector<std::unique_ptr<Kernel>> kernels;
};

/// Builds a program in CUDA C++. Without a host driver (CUDA_SIMULATOR_HOST names its library), or if it refuses the
/// program, returns nullptr and says why.
std::unique_ptr<Program> build(const std::string& source, std::string* why);

/// Runs a kernel to its end. `arguments` has each one's bytes. False if the driver refuses.
bool run(const Kernel& kernel, const unsigned groups[3], const unsigned items[3],
         const std::vector<std::vector<char>>& arguments);

}  // namespace simulator
