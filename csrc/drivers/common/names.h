// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cctype>
#include <cstddef>
#include <string_view>

namespace outboard::common {

inline bool is_name_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Calls `use` with each word of a text in C.
template <typename Use>
void for_each_name(std::string_view text, Use use) {
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    while (i < text.size() && is_name_character(text[i])) ++i;
    if (i > begin) use(text.substr(begin, i - begin));
    if (i == begin) ++i;
  }
}

}  // namespace outboard::common
