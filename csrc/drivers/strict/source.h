// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace outboard::strict {

/// A program in OpenCL C for a device without double precision: what asks for the extension finds none.
std::string without_doubles(const std::string& source);

/// Whether a program in a C dialect uses double precision outside of comments and of what is there only with
/// `cl_khr_fp64`: behind `#ifdef` of it, or of a macro that is defined behind that.
bool uses_doubles(const std::string& source);

/// Whether a program in OpenCL C calls atomic functions of 64 bits (`atom_add` and its kin), by a macro's name or their
/// own.
bool uses_long_atomics(const std::string& source);

}  // namespace outboard::strict
