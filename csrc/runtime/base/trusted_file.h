// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

/// Files that nobody but the user and root can have written; `src/outboard/trusted.py` is the same in Python.
///
/// What lies in a cache is run. So a file is read only if it and each directory from the root down belong to the user
/// or to root and nobody else can write them. A directory in which anybody may have files, but nobody can touch
/// another's (sticky, as /tmp is), may be on the way. Each step is taken from the directory before it, so nothing can
/// be exchanged between looking and reading. Knows nothing else of the runtime: drivers may use it.
namespace outboard::trusted {

/// Somebody but the user and root may have written a file or directory; the text says which, and what to do.
class Untrusted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A file's content; nothing if there is no file, or it cannot be read. Throws Untrusted.
std::optional<std::string> read(const std::string& path);

/// Writes a file that appears, or changes, as a whole and that only the user can read; makes directories likewise.
/// False, and nothing is left behind, if that is not possible: no room, a file system that is only read. Throws
/// Untrusted.
bool write(const std::string& path, const std::string& content);

/// Makes now the time of a file's last use, if this process may (`outboard.compiler.plans.eviction` goes by it).
void mark_used(const std::string& path) noexcept;

/// Whether nobody else can write the file `path`, or exchange it. Links are followed.
bool is_trusted_file(const std::string& path);

/// Whether nobody else can write the directory `path`, or exchange it. `shared`: others may have files in it (/tmp).
bool is_trusted_directory(const std::string& path, bool shared = false);

/// Says on stderr that `what` is not used and why: in one line, once per process and `what`.
void say_once(const std::string& what, const Untrusted& why);

}  // namespace outboard::trusted
