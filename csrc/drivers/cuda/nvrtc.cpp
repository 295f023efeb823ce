// SPDX-License-Identifier: Apache-2.0
#include "cuda/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace outboard::cuda {
namespace {

constexpr const char* kMissing =
    "programs for NVIDIA GPUs are compiled by NVRTC, which was not found. 'pip install nvidia-cuda-nvrtc' brings it "
    "(for "
    "a driver of CUDA 12 'pip install nvidia-cuda-nvrtc-cu12'). OUTBOARD_CUDA_NVRTC names one elsewhere: the path of "
    "libnvrtc.so.13 or libnvrtc.so.12.";
constexpr int kCompilationFailed = 6, kInvalidOption = 5;

void* open_library() {
  const char* const chosen = std::getenv("OUTBOARD_CUDA_NVRTC");
  if (chosen != nullptr && *chosen != '\0') return dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12"}) {
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(std::move(word));
  return words;
}

}  // namespace

Nvrtc Nvrtc::find() {
  void* const library = open_library();
  if (library == nullptr) throw std::runtime_error(std::string(kMissing) + " (" + dlerror() + ")");
  Nvrtc compiler;
  compiler.load(library);
  return compiler;
}

void Nvrtc::load(void* library) {
#define OUTBOARD_FIND(name)                                       \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #name)); \
  if (name == nullptr) throw std::runtime_error("NVRTC lacks " #name ". " + std::string(kMissing));
  OUTBOARD_FIND(nvrtcVersion)
  OUTBOARD_FIND(nvrtcGetNumSupportedArchs)
  OUTBOARD_FIND(nvrtcGetSupportedArchs)
  OUTBOARD_FIND(nvrtcGetErrorString)
  OUTBOARD_FIND(nvrtcCreateProgram)
  OUTBOARD_FIND(nvrtcDestroyProgram)
  OUTBOARD_FIND(nvrtcCompileProgram)
  OUTBOARD_FIND(nvrtcGetProgramLogSize)
  OUTBOARD_FIND(nvrtcGetProgramLog)
  OUTBOARD_FIND(nvrtcGetCUBINSize)
  OUTBOARD_FIND(nvrtcGetCUBIN)
  OUTBOARD_FIND(nvrtcGetPTXSize)
  OUTBOARD_FIND(nvrtcGetPTX)
#undef OUTBOARD_FIND
  check(nvrtcVersion(&major_, &minor_), "nvrtcVersion");
  int count = 0;
  check(nvrtcGetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs");
  architectures_.resize(static_cast<size_t>(std::max(count, 0)));
  check(nvrtcGetSupportedArchs(architectures_.data()), "nvrtcGetSupportedArchs");
  if (architectures_.empty()) throw std::runtime_error("NVRTC compiles for no GPU");
  std::sort(architectures_.begin(), architectures_.end());
}

void Nvrtc::check(int result, const char* function) const {
  if (result != 0) throw std::runtime_error(std::string(function) + " returned " + nvrtcGetErrorString(result));
}

Architecture Nvrtc::architecture_for(int capability) const {
  const auto behind = std::upper_bound(architectures_.begin(), architectures_.end(), capability);
  if (behind == architectures_.begin()) return {};
  const int newest = *std::prev(behind);
  return {newest, newest / 10 == capability / 10};
}

std::string Nvrtc::log_of(Program program) const {
  size_t bytes = 0;
  check(nvrtcGetProgramLogSize(program, &bytes), "nvrtcGetProgramLogSize");
  std::string log(bytes, '\0');
  check(nvrtcGetProgramLog(program, log.data()), "nvrtcGetProgramLog");
  return log.c_str();
}

std::string Nvrtc::build(const std::string& source, const std::string& options,
                         const Architecture& architecture) const {
  struct Owner {
    const Nvrtc& compiler;
    Program program = nullptr;
    ~Owner() { compiler.nvrtcDestroyProgram(&program); }
  };
  std::vector<std::string> words{"--gpu-architecture=" + architecture.name(), "--device-as-default-execution-space",
                                 "--std=c++17"};
  for (std::string& word : words_of(options)) words.push_back(std::move(word));
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());

  Program made = nullptr;
  check(nvrtcCreateProgram(&made, source.c_str(), "program.cu", 0, nullptr, nullptr), "nvrtcCreateProgram");
  const Owner owner{*this, made};
  const int result = nvrtcCompileProgram(made, static_cast<int>(arguments.size()), arguments.data());
  if (result == kCompilationFailed || result == kInvalidOption) {
    throw BuildError(std::string("NVRTC: ") + nvrtcGetErrorString(result) + "\n" + log_of(made));
  }
  check(result, "nvrtcCompileProgram");
  const auto size_of = architecture.machine ? nvrtcGetCUBINSize : nvrtcGetPTXSize;
  const auto code_of = architecture.machine ? nvrtcGetCUBIN : nvrtcGetPTX;
  size_t bytes = 0;
  check(size_of(made, &bytes), "asking NVRTC for the size of the code");
  std::string code(bytes, '\0');
  check(code_of(made, code.data()), "asking NVRTC for the code");
  return code;
}

}  // namespace outboard::cuda
