// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace outboard::host {

/// What a program wrote, and how it ended.
struct Outcome {
  int status = -1;     // what it exited with; -1 if it was killed
  std::string output;  // standard output
  std::string errors;  // standard error
};

/// Runs a program, without a shell and with little of this process' environment, and returns when it has ended. Its
/// standard streams are files of memory, which no other process can open. Throws std::system_error if it cannot start.
///
/// `words`: the path of the program, then its arguments. `input`: what it reads from standard input.
Outcome run_program(const std::vector<std::string>& words, std::string_view input);

}  // namespace outboard::host
