// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace outboard::distributed {

/// A process of some machine: plain bytes, which others compare.
struct ProcessIdentity {
  char boot[40];           ///< which start of which machine
  uint64_t pid_namespace;  ///< in which `process` is a number; 0: unknown
  uint64_t begin;          ///< in clock ticks since the machine's
  int32_t process;
};

/// This process.
ProcessIdentity own_identity();
/// Whether these know each other by their numbers. A process that cannot tell where it is does not even know itself.
bool are_near(const ProcessIdentity& one, const ProcessIdentity& other);
/// Whether a process near this one has ended (also if nobody has noticed).
bool has_ended(const ProcessIdentity& near);

}  // namespace outboard::distributed
