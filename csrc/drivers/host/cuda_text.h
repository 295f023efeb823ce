// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace outboard::host {

/// A program in CUDA C++ behind definitions of what NVRTC has built in, in C++ for Clang: so much of it as programs of
/// Outboard's use. Lines keep their numbers in messages.
std::string with_cuda(std::string_view source);

}  // namespace outboard::host
