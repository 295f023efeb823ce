// SPDX-License-Identifier: Apache-2.0
#include "common/caches.h"

#include <algorithm>
#include <fstream>

namespace outboard::common {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  return text;
}

/// Bytes of a text such as "48K"; 0 for anything else.
uint64_t bytes_of(const std::string& text) {
  constexpr size_t kMostDigits = 9;
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0 || digits > kMostDigits) return 0;
  const uint64_t number = std::stoull(text.substr(0, digits));
  if (digits == text.size()) return number;
  return text[digits] == 'K' ? number << 10 : text[digits] == 'M' ? number << 20 : 0;
}

}  // namespace

Caches Caches::now() { return now(""); }

Caches Caches::now(const std::string& root) {
  Caches caches{0, 0};
  int nearest = 0, farthest = 0;
  for (int index = 0;; ++index) {
    const std::string folder = root + "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    const std::string level = text_of(folder + "level");
    if (level.size() != 1 || level[0] < '1' || level[0] > '9') return caches;
    const int number = level[0] - '0';
    const uint64_t bytes = bytes_of(text_of(folder + "size"));
    if (text_of(folder + "type") == "Instruction" || bytes == 0) continue;
    if (nearest == 0 || number < nearest) nearest = number, caches.near = bytes;
    if (number > farthest) farthest = number, caches.last = bytes;
  }
}

}  // namespace outboard::common
