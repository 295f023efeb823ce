// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace outboard {

/// SHA-256 of a byte string (FIPS 180-4).
std::array<uint8_t, 32> sha256(const void* data, size_t bytes);
/// The same, in lower-case hexadecimal.
std::string sha256_hex(const std::string& text);

}  // namespace outboard
