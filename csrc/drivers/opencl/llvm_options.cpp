// SPDX-License-Identifier: Apache-2.0
#include "opencl/llvm_options.h"

#include <dlfcn.h>

#include <initializer_list>

namespace outboard::opencl {
namespace {

using ParseOptions = void (*)(int count, const char* const* arguments, const char* overview);

/// LLVM's function that takes options as of a command line, or null if no such LLVM is in the process.
ParseOptions parser_of_wrong_llvm() {
  for (const char* name : {"libLLVM-15.so.1", "libLLVM-14.so.1"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) {
      return reinterpret_cast<ParseOptions>(dlsym(library, "LLVMParseCommandLineOptions"));
    }
  }
  return nullptr;
}

bool tell() {
  const ParseOptions parse = parser_of_wrong_llvm();
  if (parse == nullptr) return false;
  const char* const arguments[] = {"outboard", "-vectorize-slp=false"};
  parse(2, arguments, "");
  return true;
}

}  // namespace

bool keeps_straight_line_code() {
  static const bool told = tell();
  return told;
}

}  // namespace outboard::opencl
