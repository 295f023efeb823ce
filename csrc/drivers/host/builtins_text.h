// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace outboard::host {

/// OpenCL C's built-in functions in sections. A section begins with a line `//: name ...` that says which names it
/// defines, and goes to the next such line. It uses sections before it only.
extern const char* const kBuiltinsText;

}  // namespace outboard::host
