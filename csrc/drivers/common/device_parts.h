// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace outboard::common {

/// What is wrong where `wanted_parts` returns 0.
extern const char* const kBadNumberOfParts;

/// How many devices OUTBOARD_NUM_DEVICES asks of one CPU (1 if unset), or 0 if it makes no sense.
unsigned wanted_parts();

}  // namespace outboard::common
