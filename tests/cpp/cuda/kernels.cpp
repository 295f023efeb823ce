// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <dlfcn.h>

#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "outboard/driver.h"

namespace simulator {
namespace {

struct Host {
  const ob_driver* driver = nullptr;
  ob_device device = nullptr;
  ob_stream stream = nullptr;  // of the host driver, any thread may use it
  std::string problem;

  Host() {
    const char* const path = std::getenv("CUDA_SIMULATOR_HOST");
    if (path == nullptr) {
      problem = "CUDA_SIMULATOR_HOST names no host driver";
      return;
    }
    setenv("OUTBOARD_HOST_DIALECT", "cuda", 1);
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      problem = dlerror();
      return;
    }
    driver = reinterpret_cast<ob_driver_entry>(dlsym(library, OB_DRIVER_ENTRY_NAME))();
    uint32_t count = 0;
    const bool works = driver->device_count(&count) == OB_OK && count > 0 && driver->device_open(0, &device) == OB_OK &&
                       driver->stream_create(device, &stream) == OB_OK;
    if (!works) problem = driver->last_error();
  }
};

Host& host() {
  static Host* const instance = new Host;
  return *instance;
}

/// The lines of a binary of the host driver that describe kernels (csrc/drivers/host/program.cpp).
std::vector<std::unique_ptr<Kernel>> described(const std::string& binary) {
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::istringstream lines(binary);
  std::string line;
  for (int i = 0; i < 3; ++i) std::getline(lines, line);
  while (std::getline(lines, line) && !line.empty()) {
    std::istringstream words(line);
    auto kernel = std::make_unique<Kernel>();
    int barriers = 0, required = 0;
    size_t count = 0;
    words >> kernel->name >> barriers >> kernel->local_bytes >> required >> required >> required >> count;
    for (size_t i = 0; i < count; ++i) {
      uint32_t bytes = 0;
      words >> bytes;
      kernel->is_pointer.push_back(bytes == 0);
      kernel->sizes.push_back(bytes == 0 ? sizeof(ob_ptr) : bytes);
    }
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

}  // namespace

std::unique_ptr<Program> build(const std::string& source, std::string* why) {
  Host& on = host();
  *why = on.problem;
  if (!on.problem.empty()) return nullptr;
  ob_program program = nullptr;
  size_t bytes = 0;
  if (on.driver->program_build(on.device, source.c_str(), "", &program) != OB_OK ||
      on.driver->program_binary(program, nullptr, &bytes) != OB_OK) {
    *why = on.driver->last_error();
    return nullptr;
  }
  std::string binary(bytes, '\0');
  on.driver->program_binary(program, binary.data(), &bytes);
  auto made = std::make_unique<Program>();
  made->kernels = described(binary);
  for (const auto& kernel : made->kernels) {
    ob_kernel handle = nullptr;
    if (on.driver->kernel_get(program, kernel->name.c_str(), &handle) != OB_OK) return nullptr;
    kernel->handle = handle;
  }
  return made;  // the host driver's program stays: kernels may still be queued
}

bool run(const Kernel& kernel, const unsigned groups[3], const unsigned items[3],
         const std::vector<std::vector<char>>& arguments) {
  std::vector<ob_argument> passed;
  for (size_t i = 0; i < arguments.size(); ++i) {
    passed.push_back({kernel.is_pointer[i] ? 1u : 0u, kernel.sizes[i], arguments[i].data()});
  }
  const uint64_t global[3] = {uint64_t{groups[0]} * items[0], uint64_t{groups[1]} * items[1],
                              uint64_t{groups[2]} * items[2]};
  const uint32_t local[3] = {items[0], items[1], items[2]};
  return host().driver->launch(host().stream, static_cast<ob_kernel>(kernel.handle), global, local, passed.data(),
                               static_cast<uint32_t>(passed.size())) == OB_OK;
}

}  // namespace simulator
