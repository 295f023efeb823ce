// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "outboard/driver.h"

namespace outboard::strict {

/// Remembers `text` for `last_error` of the calling thread; returns `status`.
ob_status fail(ob_status status, const std::string& text);
/// What `fail` remembered last on the calling thread.
const char* last_failure();

/// Whoever uses the driver broke a rule of driver.h: prints it, counts it (aborts with OUTBOARD_STRICT_ABORT=1), and
/// returns OB_INVALID_ARGUMENT with `text` for `last_error`.
ob_status violation(const std::string& text);
/// How many there were so far.
uint64_t violations();

}  // namespace outboard::strict
