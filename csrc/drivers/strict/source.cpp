// SPDX-License-Identifier: Apache-2.0
#include "strict/source.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>
#include <vector>

namespace outboard::strict {
namespace {

std::string without_comments(const std::string& source) {
  std::string kept;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source.compare(i, 2, "//") == 0) i = std::min(source.find('\n', i), source.size() - 1);
    if (source.compare(i, 2, "/*") == 0) i = std::min(source.find("*/", i), source.size() - 2) + 1;
    kept += source[i] == '/' ? ' ' : source[i];
  }
  return kept;
}

std::string directive(const std::string& line) {
  const size_t begin = line.find_first_not_of(" \t");
  return begin != std::string::npos && line[begin] == '#' ? line.substr(begin + 1) : "";
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// A type of doubles: the word, with a number behind it or none.
bool names_doubles(const std::string& line) {
  static const std::string kWord = "double";
  for (size_t at = line.find(kWord); at != std::string::npos; at = line.find(kWord, at + 1)) {
    size_t end = at + kWord.size();
    while (end < line.size() && std::isdigit(static_cast<unsigned char>(line[end])) != 0) ++end;
    if ((at == 0 || !is_word(line[at - 1])) && (end == line.size() || !is_word(line[end]))) return true;
  }
  return false;
}

/// The word that follows `start`, with which `said` begins.
std::string word_behind(const std::string& said, const std::string& start) {
  const size_t end = std::find_if_not(said.begin() + start.size(), said.end(), is_word) - said.begin();
  return said.substr(start.size(), end - start.size());
}

/// The words of a line, in order.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < line.size();) {
    const size_t end =
        std::find_if_not(line.begin() + static_cast<ptrdiff_t>(begin), line.end(), is_word) - line.begin();
    if (end > begin) words.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace

std::string without_doubles(const std::string& source) { return "#undef cl_khr_fp64\n#line 1\n" + source; }

bool uses_doubles(const std::string& source) {
  std::istringstream lines(without_comments(source));
  std::string line;
  int hidden = 0;  // conditions that are open since the one that asks for doubles, itself included
  std::set<std::string> conditions = {"cl_khr_fp64"};
  while (std::getline(lines, line)) {
    const std::string said = directive(line);
    if (hidden == 1 && said.rfind("define ", 0) == 0) conditions.insert(word_behind(said, "define "));
    if (hidden == 0 && said.rfind("ifdef ", 0) == 0 && conditions.count(word_behind(said, "ifdef ")) != 0) {
      hidden = 1;
    } else if (hidden > 0 && said.rfind("if", 0) == 0) {
      ++hidden;
    } else if (hidden > 0 && said.rfind("endif", 0) == 0) {
      --hidden;
    } else if (hidden == 1 && said.rfind("else", 0) == 0) {
      hidden = 0;
    } else if (hidden == 0 && (said.empty() || said.rfind("define", 0) == 0) && names_doubles(line)) {
      return true;
    }
  }
  return false;
}

bool uses_long_atomics(const std::string& source) {
  std::istringstream lines(without_comments(source));
  std::string line;
  std::set<std::string> macros;  // that stand for such functions
  const auto is_atomic = [&](const std::string& word) {
    return word.rfind("atom_", 0) == 0 || macros.count(word) != 0;
  };
  while (std::getline(lines, line)) {
    const std::string said = directive(line);
    const std::vector<std::string> words = words_of(said.empty() ? line : said);
    if (!std::any_of(words.begin(), words.end(), is_atomic)) continue;
    if (said.empty()) return true;
    if (words.size() > 1 && words[0] == "define") macros.insert(words[1]);
  }
  return false;
}

}  // namespace outboard::strict
