// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace outboard {

/// Binaries of common programs that came with Outboard, made elsewhere, for drivers whose `program_load` refuses what
/// their device cannot run. One file, written when a package is made (`outboard.compiler.plans.shipped`):
///
///   "OBPROG01", the SHA-256 of the table (64 hexadecimal digits), the number of entries (u64), the table, the
///   binaries.
///
/// An entry is the SHA-256 of what a binary is of (64 digits; see `program_digest`) and its offset in the file and its
/// bytes (u64 each). Entries are in order of their digests; those of one program in the order in which to try them. The
/// file is read at the first question, by the rules of `trusted_file.h`; one that is damaged counts as none.
class ShippedPrograms {
 public:
  /// Process-wide; an empty string: none. Thread-safe.
  static void set_file(const std::string& path);
  /// Binaries for a program by its digest, the one to try first first. Thread-safe.
  static std::vector<std::string> find(const std::string& digest);
};

/// What names a program in the file: a digest, in hexadecimal, of its source, its options and its driver's name.
std::string program_digest(const std::string& source, const std::string& options, const char* driver);

}  // namespace outboard
