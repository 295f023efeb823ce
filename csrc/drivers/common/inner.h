// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <cstddef>

#include "outboard/driver.h"

namespace outboard::common {

/// The driver that another one wraps, from a library's path; nullptr if there is none of this version of the interface.
inline const ob_driver* load_inner(const char* path) {
  void* const library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto entry = reinterpret_cast<ob_driver_entry>(dlsym(library, OB_DRIVER_ENTRY_NAME));
  const ob_driver* const driver = entry == nullptr ? nullptr : entry();
  const bool fits =
      driver != nullptr && driver->abi_major == OB_ABI_MAJOR && driver->struct_size >= offsetof(ob_driver, memory_info);
  return fits ? driver : nullptr;
}

}  // namespace outboard::common
