// SPDX-License-Identifier: Apache-2.0
#include "cuda/program.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/base/sha256.h"

namespace outboard::cuda {
namespace {

constexpr std::string_view kFormat = "outboard cuda program 1\n";
constexpr size_t kDigits = 64;
constexpr uint32_t kPointerBytes = 8;
/// Work-items in a group whose size is left open, at most: enough to hide what takes time, by NVIDIA's advice.
constexpr uint64_t kUsualItems = 256;

CUresult describe(ob_kernel_t& kernel) {
  int items = 0, bytes = 0;
  CUresult result = cu().cuFuncGetAttribute(&items, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel.function);
  if (result == CUDA_SUCCESS) {
    result = cu().cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel.function);
  }
  kernel.most_items = static_cast<uint32_t>(items);
  kernel.local_memory = static_cast<uint64_t>(bytes);
  if (result != CUDA_SUCCESS || cu().cuFuncGetParamInfo == nullptr) return result;
  size_t offset = 0, size = 0;
  while (cu().cuFuncGetParamInfo(kernel.function, kernel.sizes.size(), &offset, &size) == CUDA_SUCCESS) {
    kernel.sizes.push_back(static_cast<uint32_t>(size));
  }
  kernel.knows_sizes = true;
  return CUDA_SUCCESS;
}

/// The largest divisor of a number up to a limit.
uint32_t divisor(uint64_t number, uint64_t limit) {
  uint64_t found = std::max<uint64_t>(std::min(number, limit), 1);
  while (number % found != 0) --found;
  return static_cast<uint32_t>(found);
}

}  // namespace

std::string to_binary(const std::string& architecture, const std::string& code) {
  const std::string content = architecture + "\n" + code;
  return std::string(kFormat) + sha256_hex(content) + "\n" + content;
}

std::string code_in(std::string_view binary, const std::string& architecture) {
  const size_t start = kFormat.size() + kDigits + 1;
  if (binary.size() < start || binary.substr(0, kFormat.size()) != kFormat) {
    throw std::invalid_argument("not a program of the CUDA driver");
  }
  const std::string content(binary.substr(start));
  if (sha256_hex(content) + "\n" != binary.substr(kFormat.size(), kDigits + 1)) {
    throw std::invalid_argument("a damaged program of the CUDA driver");
  }
  const std::string made_for = content.substr(0, content.find('\n'));
  if (made_for != architecture) throw std::invalid_argument("a program for other GPUs (" + made_for + ")");
  return content.substr(made_for.size() + 1);
}

ob_status load_program(ob_device device, std::string code, ob_program* program) {
  auto made = std::make_unique<ob_program_t>();
  made->device = device;
  made->code = std::move(code);
  const CUresult result = cu().cuModuleLoadData(&made->module, made->code.data());
  if (result == CUDA_SUCCESS) *program = made.release();
  return status_of(device, result, "cuModuleLoadData");
}

ob_status find_kernel(ob_program program, const std::string& name, ob_kernel* kernel) {
  const std::lock_guard lock(program->mutex);
  const auto known = program->kernels.find(name);
  if (known != program->kernels.end()) {
    *kernel = known->second.get();
    return OB_OK;
  }
  auto made = std::make_unique<ob_kernel_t>();
  made->device = program->device;
  made->name = name;
  CUresult result = cu().cuModuleGetFunction(&made->function, program->module, name.c_str());
  if (result == CUDA_ERROR_NOT_FOUND) return fail(OB_INVALID_ARGUMENT, "the program has no kernel " + name);
  if (result != CUDA_SUCCESS) return status_of(program->device, result, "cuModuleGetFunction");
  // What is loaded only at its first launch may want to wait for the device, which captures of graphs forbid.
  if (cu().cuFuncLoad != nullptr) result = cu().cuFuncLoad(made->function);
  if (result != CUDA_SUCCESS) return status_of(program->device, result, "cuFuncLoad");
  result = describe(*made);
  if (result != CUDA_SUCCESS) return status_of(program->device, result, "cuFuncGetAttribute");
  *kernel = made.get();
  program->kernels.emplace(name, std::move(made));
  return OB_OK;
}

Grid grid_of(const ob_kernel_t& kernel, const uint64_t global[3], const uint32_t local[3]) {
  Grid grid{{1, 1, 1}, {local[0], local[1], local[2]}};
  if (local[0] == 0) {
    grid.items[0] = divisor(global[0], std::min<uint64_t>(kUsualItems, kernel.most_items));
    grid.items[1] = grid.items[2] = 1;
  }
  uint64_t items = 1;
  for (int i = 0; i < 3; ++i) {
    const std::string where = "kernel " + kernel.name + ", dimension " + std::to_string(i) + ": ";
    if (grid.items[i] == 0 || global[i] % grid.items[i] != 0) {
      throw std::invalid_argument(where + "the local size does not divide the global one");
    }
    const unsigned most_items = kernel.device->most_items[i], most_groups = kernel.device->most_groups[i];
    if (grid.items[i] > most_items) {
      throw std::invalid_argument(where + "work-groups have " + std::to_string(most_items) + " items at most");
    }
    const uint64_t groups = global[i] / grid.items[i];
    if (groups > most_groups) {
      throw std::invalid_argument(where + std::to_string(groups) + " work-groups, and CUDA has " +
                                  std::to_string(most_groups) + " at most");
    }
    grid.groups[i] = static_cast<unsigned>(groups);
    items *= grid.items[i];
  }
  if (items > kernel.most_items) {
    throw std::invalid_argument("kernel " + kernel.name + ": work-groups have " + std::to_string(kernel.most_items) +
                                " items at most, not " + std::to_string(items));
  }
  return grid;
}

std::string problem_with(const ob_kernel_t& kernel, const ob_argument* arguments, uint32_t count) {
  if (!kernel.knows_sizes) return {};
  if (kernel.sizes.size() != count) {
    return "kernel " + kernel.name + " takes " + std::to_string(kernel.sizes.size()) + " arguments, not " +
           std::to_string(count);
  }
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t size = arguments[i].is_pointer != 0 ? kPointerBytes : arguments[i].size;
    if (size == kernel.sizes[i]) continue;
    return "kernel " + kernel.name + ": argument " + std::to_string(i) + " has " + std::to_string(kernel.sizes[i]) +
           " bytes, not " + std::to_string(size);
  }
  return {};
}

}  // namespace outboard::cuda
