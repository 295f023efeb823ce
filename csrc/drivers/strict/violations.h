// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "common/error.h"
#include "outboard/driver.h"

namespace outboard::strict {

using common::fail;

/// The driver's caller broke a rule of driver.h: prints it, counts it (aborts with OUTBOARD_STRICT_ABORT=1), and
/// returns OB_INVALID_ARGUMENT with `text` for `last_error`.
ob_status violation(const std::string& text);
/// How many there were so far.
uint64_t violations();

}  // namespace outboard::strict
