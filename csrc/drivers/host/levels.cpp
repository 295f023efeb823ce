// SPDX-License-Identifier: Apache-2.0
#include "host/levels.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <vector>

namespace outboard::host {
namespace {

/// A level, and Clang's macros for what its processors have beyond those of the level before.
struct Level {
  std::string name;
  std::vector<std::string> macros;
};

const std::vector<Level>& levels() {
  static const std::vector<Level> all = {
      {"x86-64-v2", {"__SSE3__", "__SSSE3__", "__SSE4_1__", "__SSE4_2__", "__POPCNT__"}},
      {"x86-64-v3", {"__AVX2__", "__BMI__", "__BMI2__", "__F16C__", "__FMA__", "__LZCNT__", "__MOVBE__"}},
      {"x86-64-v4", {"__AVX512F__", "__AVX512BW__", "__AVX512CD__", "__AVX512DQ__", "__AVX512VL__"}},
  };
  return all;
}

}  // namespace

std::string value_of(const std::string& macros, const std::string& name) {
  const std::string start = "#define " + name + " ";
  std::istringstream lines(macros);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(start, 0) == 0) return line.substr(start.size());
  }
  return {};
}

bool is_level(const std::string& name) {
  return std::any_of(levels().begin(), levels().end(), [&](const Level& level) { return level.name == name; });
}

bool reaches(const std::string& macros, const std::string& level) {
  for (const Level& each : levels()) {
    for (const std::string& macro : each.macros) {
      if (value_of(macros, macro).empty()) return false;
    }
    if (each.name == level) return true;
  }
  return false;
}

}  // namespace outboard::host
