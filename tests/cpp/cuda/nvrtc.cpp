// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "kernels.h"

/// NVRTC of the simulator. Its "machine code" is the source, behind a check that it compiles.
namespace {

constexpr int kInvalidProgram = 4, kInvalidOption = 5, kCompilation = 6;

struct Text {
  std::string source, log, code;
};

Text& text_of(void* program) { return *static_cast<Text*>(program); }

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED int nvrtcVersion(int* major, int* minor) {
  *major = 12;
  *minor = 4;
  return 0;
}

EXPORTED int nvrtcGetNumSupportedArchs(int* count) {
  *count = 3;
  return 0;
}

EXPORTED int nvrtcGetSupportedArchs(int* architectures) {
  const int known[] = {90, 80, 75};
  std::memcpy(architectures, known, sizeof(known));
  return 0;
}

EXPORTED const char* nvrtcGetErrorString(int result) {
  return result == kCompilation      ? "NVRTC_ERROR_COMPILATION"
         : result == kInvalidOption  ? "NVRTC_ERROR_INVALID_OPTION"
         : result == kInvalidProgram ? "NVRTC_ERROR_INVALID_PROGRAM"
                                     : "NVRTC_SUCCESS";
}

EXPORTED int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*,
                                const char* const*) {
  *program = new Text{source, "", ""};
  return 0;
}

EXPORTED int nvrtcDestroyProgram(void** program) {
  delete static_cast<Text*>(*program);
  *program = nullptr;
  return 0;
}

EXPORTED int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  Text& text = text_of(program);
  bool has_architecture = false, for_devices = false;
  for (int i = 0; i < count; ++i) {
    const std::string option = options[i];
    has_architecture = has_architecture || option == "--gpu-architecture=sm_80";
    for_devices = for_devices || option == "--device-as-default-execution-space";
    if (option.rfind("-D", 0) == 0) {
      std::string macro = option.substr(2);
      std::replace(macro.begin(), macro.end(), '=', ' ');
      text.source.insert(0, "#define " + macro + "\n");
    } else if (option.rfind("--", 0) != 0) {
      text.log = "nvrtc: error: unrecognized option " + option;
      return kInvalidOption;
    }
  }
  if (!has_architecture || !for_devices) return kInvalidOption;
  if (simulator::build(text.source, &text.log) == nullptr) return kCompilation;
  text.code = text.source;
  return 0;
}

EXPORTED int nvrtcGetProgramLogSize(void* program, size_t* bytes) {
  *bytes = text_of(program).log.size() + 1;
  return 0;
}

EXPORTED int nvrtcGetProgramLog(void* program, char* log) {
  std::strcpy(log, text_of(program).log.c_str());
  return 0;
}

EXPORTED int nvrtcGetCUBINSize(void* program, size_t* bytes) {
  *bytes = text_of(program).code.size() + 1;
  return text_of(program).code.empty() ? kInvalidProgram : 0;
}

EXPORTED int nvrtcGetCUBIN(void* program, char* code) {
  std::strcpy(code, text_of(program).code.c_str());
  return 0;
}

EXPORTED int nvrtcGetPTXSize(void*, size_t*) { return kInvalidProgram; }
EXPORTED int nvrtcGetPTX(void*, char*) { return kInvalidProgram; }
