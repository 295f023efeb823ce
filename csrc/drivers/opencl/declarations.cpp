// SPDX-License-Identifier: Apache-2.0
#include "opencl/declarations.h"

#include <link.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "common/names.h"

namespace outboard::opencl {

using common::for_each_name;
using common::is_name_character;

namespace {

constexpr std::string_view kGuard = "#ifndef _OPENCL_H_";

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

/// A text in which no line goes on after its end.
std::string with_whole_lines(std::string text) {
  for (size_t i = text.find("\\\n"); i != std::string::npos; i = text.find("\\\n", i)) text.replace(i, 2, "  ");
  return text;
}

/// A text without comments.
std::string without_comments(const std::string& text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    if (text.compare(i, 2, "//") == 0) {
      i = std::min(text.find('\n', i), text.size());
    } else if (text.compare(i, 2, "/*") == 0) {
      const size_t end = text.find("*/", i + 2);
      i = end == std::string::npos ? text.size() : end + 2;
    } else {
      result += text[i++];
    }
  }
  return result;
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The folder of PoCL's library in this process, or an empty string.
std::string pocl_folder() {
  std::string folder;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        const std::string_view path = info->dlpi_name;
        const size_t slash = path.rfind('/');
        if (slash == std::string_view::npos || !starts_with(path.substr(slash + 1), "libpocl.so")) return 0;
        *static_cast<std::string*>(found) = path.substr(0, slash);
        return 1;
      },
      &folder);
  return folder;
}

/// Where PoCL looks for its header: beside its library.
std::string pocl_header() {
  const std::string folder = pocl_folder();
  if (folder.empty()) return {};
  std::string text = read(folder + "/../../share/pocl/include/opencl-c.h");
  return text.empty() ? read(folder + "/../share/pocl/include/opencl-c.h") : text;
}

}  // namespace

Declarations::Declarations(const std::string& text) {
  if (text.find(kGuard) == std::string::npos) return;
  std::istringstream lines(without_comments(with_whole_lines(text)));
  std::string declaration;
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    if (declaration.empty() && line[first] == '#') {
      if (!starts_with(std::string_view(line).substr(first), "#include")) lines_.push_back({line, true});
      continue;
    }
    declaration += line + " ";
    if (line.find(';') == std::string::npos) continue;
    add_declaration(declaration);
    declaration.clear();
  }
}

const Declarations& Declarations::of_pocl() {
  static const Declarations* const instance = new Declarations(pocl_header());
  return *instance;
}

/// Declarations of functions go by the name before the first parenthesis; what is none is always given.
void Declarations::add_declaration(const std::string& text) {
  const size_t end = text.find('(');
  size_t begin = end;
  while (begin != std::string::npos && begin > 0 && is_name_character(text[begin - 1])) --begin;
  const bool function = end != std::string::npos && begin < end && text.find('{') == std::string::npos;
  if (function) by_name_[text.substr(begin, end - begin)].push_back(lines_.size());
  lines_.push_back({text, !function});
}

std::string Declarations::prepend(const std::string& source) const {
  std::vector<bool> used(lines_.size(), false);
  for_each_name(source, [&](std::string_view name) {
    const auto found = by_name_.find(std::string(name));
    if (found == by_name_.end()) return;
    for (const size_t line : found->second) used[line] = true;
  });
  std::string result = "#undef _OPENCL_H_\n";
  for (size_t i = 0; i < lines_.size(); ++i) {
    if (used[i] || lines_[i].always) result += lines_[i].text + "\n";
  }
  return result + "#line 1\n" + source;
}

}  // namespace outboard::opencl
