// SPDX-License-Identifier: Apache-2.0
#include "common/device_parts.h"

#include <cstdlib>

namespace outboard::common {

const char* const kBadNumberOfParts = "OUTBOARD_NUM_DEVICES must be a number from 1 to 64";

unsigned wanted_parts() {
  constexpr long kMaximumParts = 64;
  const char* text = std::getenv("OUTBOARD_NUM_DEVICES");
  if (text == nullptr || *text == '\0') return 1;
  char* end = nullptr;
  const long parts = std::strtol(text, &end, 10);
  return *end != '\0' || parts < 1 || parts > kMaximumParts ? 0 : static_cast<unsigned>(parts);
}

}  // namespace outboard::common
