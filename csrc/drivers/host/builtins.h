// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace outboard::host {

/// A program in OpenCL C behind definitions of the built-in functions that it names: those of all, which a program
/// needs that puts names together with `##`, take longer to read than most programs to compile. Lines keep their
/// numbers in messages.
std::string with_builtins(std::string_view source, bool all);

}  // namespace outboard::host
