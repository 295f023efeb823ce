// SPDX-License-Identifier: Apache-2.0
#include "cuda/api.h"

#include <dlfcn.h>

#include <cstdlib>

namespace outboard::cuda {
namespace {

constexpr const char* kAdvice =
    " The NVIDIA driver brings it: on Debian 'apt install nvidia-driver', on Ubuntu 'ubuntu-drivers install'; in a "
    "container, start it with the NVIDIA Container Toolkit ('docker run --gpus all').";

const char* chosen_library() { return std::getenv("OUTBOARD_CUDA_LIBRARY"); }

void* open_library() {
  if (chosen_library() != nullptr) return dlopen(chosen_library(), RTLD_NOW | RTLD_LOCAL);
  // The second is where Windows puts it for its Linux machines.
  for (const char* name : {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

struct Loaded {
  Api api{};
  std::string problem;

  Loaded() {
    void* const library = open_library();
    if (library == nullptr) {
      const std::string name = chosen_library() != nullptr ? chosen_library() : "libcuda.so.1";
      problem = "no NVIDIA driver: " + name + " not found." + kAdvice;
      return;
    }
#define OUTBOARD_FIND(field, symbol, parameters) \
  api.field = reinterpret_cast<decltype(api.field)>(dlsym(library, symbol));
    OUTBOARD_CUDA_FUNCTIONS(OUTBOARD_FIND)
    OUTBOARD_CUDA_NEW_FUNCTIONS(OUTBOARD_FIND)
#undef OUTBOARD_FIND
#define OUTBOARD_CHECK(field, symbol, parameters) \
  if (api.field == nullptr) problem = "the NVIDIA driver lacks " symbol ": one for CUDA 11.4 or newer is needed";
    OUTBOARD_CUDA_FUNCTIONS(OUTBOARD_CHECK)
#undef OUTBOARD_CHECK
    if (problem.empty()) initialize();
  }

  void initialize() {
    const CUresult result = api.cuInit(0);
    if (result == CUDA_SUCCESS) return;
    problem = "cuInit returned " + text_of(api, result);
    if (result == CUDA_ERROR_NO_DEVICE) {
      problem += ": there is no NVIDIA GPU, or CUDA_VISIBLE_DEVICES hides it";
    } else if (result == CUDA_ERROR_STUB_LIBRARY) {
      problem += ": this libcuda.so.1 is for linking alone." + std::string(kAdvice);
    } else {
      problem += ": 'nvidia-smi' shows whether the NVIDIA driver works";
    }
  }
};

}  // namespace

const std::string& Api::load(const Api** api) {
  static const Loaded* const loaded = new Loaded;  // leaked: queued work may outlive static destructors
  *api = &loaded->api;
  return loaded->problem;
}

std::string text_of(const Api& api, CUresult error) {
  const char *name = nullptr, *text = nullptr;
  if (api.cuGetErrorName(error, &name) != CUDA_SUCCESS || name == nullptr) return std::to_string(error);
  const bool explained = api.cuGetErrorString(error, &text) == CUDA_SUCCESS && text != nullptr;
  return std::string(name) + (explained ? " (" + std::string(text) + ")" : "");
}

}  // namespace outboard::cuda
