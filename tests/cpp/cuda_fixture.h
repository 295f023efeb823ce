// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "outboard/driver.h"

/// The CUDA driver on the simulator of the API (cuda/simulator.cpp): OUTBOARD_CUDA and OUTBOARD_CUDA_SIMULATOR are
/// their files.
namespace cuda_test {

inline void* simulator() {
  static void* const library = dlopen(OUTBOARD_CUDA_SIMULATOR, RTLD_NOW);
  return library;
}

template <typename Function>
Function simulated(const char* name) {
  return reinterpret_cast<Function>(dlsym(simulator(), name));
}

inline void fail_next(const char* function, int result) {
  simulated<void (*)(const char*, int, int)>("cuda_simulator_fail")(function, 1, result);
}

inline int calls(const char* function) { return simulated<int (*)(const char*)>("cuda_simulator_calls")(function); }
inline int live(const char* kind) { return simulated<int (*)(const char*)>("cuda_simulator_live")(kind); }

inline const ob_driver& driver() {
  static const ob_driver* const table = [] {
    setenv("OUTBOARD_CUDA_LIBRARY", OUTBOARD_CUDA_SIMULATOR, 0);
    setenv("OUTBOARD_CUDA_NVRTC", OUTBOARD_CUDA_SIMULATOR, 0);
    setenv("OUTBOARD_CUDA_CUBLASLT", OUTBOARD_CUDA_SIMULATOR, 0);
    setenv("OUTBOARD_CUDA_CUDNN", OUTBOARD_CUDA_SIMULATOR, 0);
    setenv("OUTBOARD_CUDA_NVML", OUTBOARD_CUDA_SIMULATOR, 0);
    void* const library = dlopen(OUTBOARD_CUDA, RTLD_NOW);
    if (library == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<ob_driver_entry>(dlsym(library, OB_DRIVER_ENTRY_NAME))();
  }();
  return *table;
}

inline void succeed(ob_status status) {
  if (status != OB_OK) throw std::runtime_error(std::to_string(status) + ": " + driver().last_error());
}

inline bool says(const char* part) { return std::strstr(driver().last_error(), part) != nullptr; }

inline ob_device device(uint32_t index = 0) {
  ob_device handle = nullptr;
  succeed(driver().device_open(index, &handle));
  return handle;
}

struct Memory {
  explicit Memory(uint64_t bytes, ob_device on_ = device()) : on(on_), size(bytes) {
    succeed(driver().memory_alloc(on, bytes, &pointer));
  }
  ~Memory() { driver().memory_free(on, pointer); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  ob_device on;
  uint64_t size;
  ob_ptr pointer = 0;
};

struct Stream {
  explicit Stream(ob_device on = device()) { succeed(driver().stream_create(on, &handle)); }
  ~Stream() { driver().stream_destroy(handle); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void wait() const { succeed(driver().stream_wait(handle, 1)); }
  void upload(const Memory& target, const void* source) const {
    succeed(driver().copy(handle, OB_HOST_TO_DEVICE, target.pointer, reinterpret_cast<uint64_t>(source), target.size));
  }
  template <typename T>
  std::vector<T> download(const Memory& source) const {
    std::vector<T> values(source.size / sizeof(T));
    succeed(driver().copy(handle, OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(values.data()), source.pointer,
                          source.size));
    wait();
    return values;
  }
  ob_status launch(ob_kernel kernel, const Memory& x, int64_t n, std::vector<uint64_t> global,
                   std::vector<uint32_t> local) const {
    const ob_argument arguments[] = {{1, 8, &x.pointer}, {0, 8, &n}};
    return driver().launch(handle, kernel, global.data(), local.data(), arguments, 2);
  }

  ob_stream handle = nullptr;
};

}  // namespace cuda_test
