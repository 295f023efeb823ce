// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace outboard::host {

/// The value of a macro in Clang's list of those that it defines (-dM -E), or an empty text.
std::string value_of(const std::string& macros, const std::string& name);

/// Whether this names a level of the x86-64 psABI that code can be made for: x86-64-v2, x86-64-v3, x86-64-v4.
bool is_level(const std::string& name);

/// Whether a processor has all that a level asks for, by the macros that Clang defines for it.
bool reaches(const std::string& macros, const std::string& level);

}  // namespace outboard::host
