// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

namespace outboard::common {

/// Looks for a function in a library that was opened at run time. False if it has none of this name.
template <typename Function>
bool find_symbol(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace outboard::common
