// SPDX-License-Identifier: Apache-2.0
// The simulator with programs: a kernel is whatever name occurs in the source, and running it only looks whether its
// pointers lie in memory of the device. So plans run to their end without a compiler, under any sanitizer.
#include "outboard/driver.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "common/inner.h"

struct ob_kernel_t {
  std::string name;
};

struct ob_program_t {
  std::string source;
  std::map<std::string, std::unique_ptr<ob_kernel_t>> kernels;
  std::mutex mutex;
};

namespace {

constexpr char kBinary[] = "FUZZ";

const ob_driver* sim = nullptr;
std::mutex mutex;
std::map<ob_ptr, uint64_t> blocks;

/// Ends the process unless the bytes lie in one block: what the runtime hands to a driver must be right.
void check_inside(ob_ptr begin, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  auto block = blocks.upper_bound(begin);
  if (block != blocks.begin()) {
    --block;
    const uint64_t offset = begin - block->first;
    if (offset <= block->second && bytes <= block->second - offset) return;
  }
  std::fprintf(stderr, "fuzz driver: %llu bytes at %llx are not in memory of the device\n",
               static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(begin));
  std::abort();
}

ob_status properties(ob_device device, ob_device_properties* given) {
  const size_t size = given->struct_size;
  ob_device_properties p{};
  p.struct_size = sizeof(p);
  const ob_status status = sim->device_properties(device, &p);
  std::snprintf(p.dialect, sizeof(p.dialect), "opencl-c");
  std::snprintf(p.cache_key, sizeof(p.cache_key), "fuzz-1");
  p.max_work_group_size = 256;
  std::memcpy(given, &p, std::min(size, sizeof(p)));
  given->struct_size = size;
  return status;
}

ob_status memory_alloc(ob_device device, uint64_t bytes, ob_ptr* ptr) {
  const ob_status status = sim->memory_alloc(device, bytes, ptr);
  if (status != OB_OK) return status;
  const std::lock_guard<std::mutex> lock(mutex);
  blocks[*ptr] = bytes;
  return status;
}

ob_status memory_free(ob_device device, ob_ptr ptr) {
  const std::lock_guard<std::mutex> lock(mutex);
  blocks.erase(ptr);
  return sim->memory_free(device, ptr);
}

ob_status program_build(ob_device, const char* source, const char*, ob_program* program) {
  if (std::strstr(source, "__kernel") == nullptr) return OB_BUILD_FAILED;
  *program = new ob_program_t;
  (*program)->source = source;
  return OB_OK;
}

ob_status program_load(ob_device device, const void* binary, size_t bytes, ob_program* program) {
  const std::string text(static_cast<const char*>(binary), bytes);
  if (text.rfind(kBinary, 0) != 0) return OB_INVALID_ARGUMENT;
  return program_build(device, text.c_str() + sizeof(kBinary) - 1, "", program);
}

ob_status program_binary(ob_program program, void* binary, size_t* bytes) {
  const std::string text = kBinary + program->source;
  if (binary != nullptr) std::memcpy(binary, text.data(), std::min(*bytes, text.size()));
  *bytes = text.size();
  return OB_OK;
}

ob_status program_release(ob_program program) {
  delete program;
  return OB_OK;
}

ob_status kernel_get(ob_program program, const char* name, ob_kernel* kernel) {
  if (*name == '\0' || program->source.find(name) == std::string::npos) return OB_INVALID_ARGUMENT;
  const std::lock_guard<std::mutex> lock(program->mutex);
  auto& found = program->kernels[name];
  if (found == nullptr) found.reset(new ob_kernel_t{name});
  *kernel = found.get();
  return OB_OK;
}

ob_status launch(ob_stream, ob_kernel kernel, const uint64_t* global, const uint32_t* local,
                 const ob_argument* arguments, uint32_t count) {
  if (kernel->name.empty() || global[0] == 0) std::abort();
  for (int i = 0; i < 3 && local[0] != 0; ++i) {
    if (local[i] != 0 && global[i] % local[i] != 0) std::abort();
  }
  for (uint32_t i = 0; i < count; ++i) {
    ob_ptr pointer = 0;
    if (arguments[i].is_pointer == 0) continue;
    std::memcpy(&pointer, arguments[i].value, sizeof(pointer));
    if (pointer != 0) check_inside(pointer, 0);  // of nothing there is no address
  }
  return OB_OK;
}

ob_driver make_driver() {
  sim = outboard::common::load_inner(OUTBOARD_SIM);
  ob_driver driver = *sim;
  driver.name = "fuzz";
  driver.device_properties = properties;
  driver.memory_alloc = memory_alloc;
  driver.memory_free = memory_free;
  driver.program_build = program_build;
  driver.program_load = program_load;
  driver.program_binary = program_binary;
  driver.program_release = program_release;
  driver.kernel_get = kernel_get;
  driver.launch = launch;
  return driver;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const ob_driver* outboard_driver(void) {
  static const ob_driver driver = make_driver();
  return &driver;
}

/// Ends the process unless the bytes lie in one block of device memory.
__attribute__((visibility("default"))) void outboard_fuzz_check(ob_ptr begin, uint64_t bytes) {
  check_inside(begin, bytes);
}
}
