// SPDX-License-Identifier: Apache-2.0
#include "host/builtins.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <sstream>
#include <unordered_map>
#include <vector>

#include "common/names.h"
#include "host/builtins_text.h"

namespace outboard::host {
namespace {

using common::for_each_name;

constexpr std::string_view kMark = "//: ";

struct Section {
  std::string text;
  std::vector<size_t> needs;  // sections before this one
};

class Sections {
 public:
  Sections() {
    std::istringstream lines(kBuiltinsText);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind(kMark, 0) == 0) {
        begin(line.substr(kMark.size()));
      } else if (!all_.empty()) {
        add(line);
      }
    }
  }

  static const Sections& get() {
    static const Sections* const instance = new Sections;
    return *instance;
  }

  /// Marks the section that a name is of, and those that it needs.
  void mark(const std::string& name, std::vector<bool>& marked) const {
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) mark(found->second, marked);
  }

  /// All sections, or only the first, which has types and constants.
  std::vector<bool> marks(bool all) const {
    std::vector<bool> marked(all_.size(), all);
    marked[0] = true;
    return marked;
  }

  std::string text(const std::vector<bool>& marked) const {
    std::string result;
    for (size_t i = 0; i < all_.size(); ++i) {
      if (marked[i]) result += all_[i].text;
    }
    return result;
  }

 private:
  void begin(const std::string& names) {
    for_each_name(names, [&](std::string_view name) { by_name_.emplace(name, all_.size()); });
    all_.emplace_back();
  }

  void add(const std::string& line) {
    Section& section = all_.back();
    section.text += line + "\n";
    for_each_name(line, [&](std::string_view name) {
      const auto found = by_name_.find(std::string(name));
      if (found != by_name_.end() && found->second + 1 < all_.size()) section.needs.push_back(found->second);
    });
  }

  void mark(size_t section, std::vector<bool>& marked) const {
    if (marked[section]) return;
    marked[section] = true;
    for (const size_t needed : all_[section].needs) mark(needed, marked);
  }

  std::vector<Section> all_;
  std::unordered_map<std::string, size_t> by_name_;
};

struct Type {
  const char* name;
  bool floating;
  const char *lowest, *highest;  // of integers
  bool is_signed;
};
constexpr std::array<Type, 11> kTypes{{{"char", false, "CHAR_MIN", "CHAR_MAX", true},
                                       {"uchar", false, "0", "UCHAR_MAX", false},
                                       {"short", false, "SHRT_MIN", "SHRT_MAX", true},
                                       {"ushort", false, "0", "USHRT_MAX", false},
                                       {"int", false, "INT_MIN", "INT_MAX", true},
                                       {"uint", false, "0", "UINT_MAX", false},
                                       {"long", false, "LONG_MIN", "LONG_MAX", true},
                                       {"ulong", false, "0", "ULONG_MAX", false},
                                       {"half", true, "", "", true},
                                       {"float", true, "", "", true},
                                       {"double", true, "", "", true}}};

bool take(std::string_view& text, std::string_view start) {
  if (text.substr(0, start.size()) != start) return false;
  text.remove_prefix(start.size());
  return true;
}

/// A name such as `convert_uchar16_sat_rte` or `as_float4`, taken apart.
struct Conversion {
  const Type* type = nullptr;
  std::string width;  // empty for scalars
  bool saturates = false;
  std::string rounding;  // "rte", "rtz", "rtp", "rtn" or empty

  std::string target() const { return type->name + width; }

  static std::optional<Conversion> read(std::string_view name) {
    Conversion result;
    for (const Type& type : kTypes) {
      std::string_view rest = name;
      if (take(rest, type.name) && (rest.empty() || rest[0] == '_' || std::isdigit(rest[0]) != 0)) {
        result.type = &type;
        name = rest;
        break;
      }
    }
    if (result.type == nullptr) return std::nullopt;
    for (const char* width : {"16", "2", "3", "4", "8"}) {
      if (take(name, width)) {
        result.width = width;
        break;
      }
    }
    result.saturates = take(name, "_sat");
    for (const char* rounding : {"rte", "rtz", "rtp", "rtn"}) {
      if (take(name, std::string("_") + rounding)) result.rounding = rounding;
    }
    if (!name.empty()) return std::nullopt;
    return result;
  }

  /// What C's conversion does: to integers towards zero, to floating point to nearest.
  bool is_usual() const { return !saturates && (rounding.empty() || rounding == (type->floating ? "rte" : "rtz")); }
};

std::string rounded(const Type& source, const std::string& rounding, const std::string& value) {
  if (!source.floating || rounding.empty() || rounding == "rtz") return value;
  const std::string function = rounding == "rte" ? "roundeven" : rounding == "rtp" ? "ceil" : "floor";
  return "__builtin_elementwise_" + function + "(" + value + ")";
}

/// An integer type's value nearest to a scalar `x`; 0 for NaN.
std::string nearest(const Type& source, const Type& target) {
  const std::string low = target.lowest, high = target.highest, t = target.name, s = source.name;
  if (source.floating) {
    return "x != x ? (" + t + ")0 : x <= (" + s + ")" + low + " ? (" + t + ")" + low + " : x >= (" + s + ")" + high +
           " ? (" + t + ")" + high + " : (" + t + ")x";
  }
  const std::string below = source.is_signed ? "(long)x < (long)" + low : "0";
  const std::string above = source.is_signed ? "x > 0 && (ulong)x > (ulong)" + high : "x > (ulong)" + high;
  return below + " ? (" + t + ")" + low + " : " + above + " ? (" + t + ")" + high + " : (" + t + ")x";
}

/// Definitions of a conversion for each type that it converts from.
std::string unusual_conversion(const std::string& name, const Conversion& conversion) {
  std::string text;
  const Type& target = *conversion.type;
  for (const Type& source : kTypes) {
    if (std::string_view(source.name) == "half") continue;
    const std::string from = source.name, scalar = "obh_one_" + name;
    const std::string value = rounded(source, conversion.rounding, "x");
    text += "OBH_FN " + std::string(target.name) + " " + scalar + "(" + from + " x) { x = " + value + "; return " +
            (conversion.saturates ? nearest(source, target) : "(" + std::string(target.name) + ")x") + "; }\n";
    const std::string whole = conversion.target() + " " + name + "(" + from + conversion.width + " x)";
    text += "OBH_FN " + whole +
            (conversion.width.empty() ? " { return " + scalar + "(x); }\n"
                                      : " { " + conversion.target() + " r; OBH_LANES(" + conversion.width +
                                            ") r[i] = " + scalar + "((" + from + ")x[i]); return r; }\n");
  }
  return text;
}

/// The definition of `convert_...` or `as_...`; nothing if the name is none. Conversions to floating point that round
/// in another way than to nearest are not there.
std::string conversion(const std::string& name) {
  std::string_view rest = name;
  const bool as = take(rest, "as_");
  if (!as && !take(rest, "convert_")) return {};
  const std::optional<Conversion> read = Conversion::read(rest);
  if (!read) return {};
  const std::string target = read->target(), macro = "#define " + name + "(x) ";
  if (as) return read->is_usual() ? macro + "__builtin_astype((x), " + target + ")\n" : "";
  if (!read->is_usual()) return read->type->floating ? "" : unusual_conversion(name, *read);
  if (read->width.empty()) return macro + "((" + target + ")(x))\n";
  return macro + "__builtin_convertvector((x), " + target + ")\n";
}

bool goes_on(const std::string& line) { return !line.empty() && line.back() == '\\'; }

/// The words of a program; unless they are to be `all`, those of a macro's definition only if it is one of them: a
/// program begins with what its language calls each word of its dialect, and says few of those.
std::set<std::string> names_of(std::string_view source, bool all) {
  std::unordered_map<std::string, std::string> macros;
  std::string text;
  std::istringstream lines{std::string(source)};
  for (std::string line; std::getline(lines, line);) {
    for (std::string more; goes_on(line) && std::getline(lines, more);) line.back() = ' ', line += more;
    std::string_view rest = line;
    if (all || !take(rest, "#define ")) {
      text += line + '\n';
      continue;
    }
    const auto end = std::find_if_not(rest.begin(), rest.end(), common::is_name_character);
    macros[std::string(rest.begin(), end)] += rest.substr(end - rest.begin());
  }
  std::set<std::string> names;
  while (!text.empty()) {
    std::string bodies;
    for_each_name(text, [&](std::string_view name) {
      const bool is_new = names.emplace(name).second;
      const auto macro = is_new ? macros.find(std::string(name)) : macros.end();
      if (macro != macros.end()) bodies += macro->second + '\n';
    });
    text = std::move(bodies);
  }
  return names;
}

}  // namespace

std::string with_builtins(std::string_view source, bool all) {
  const Sections& sections = Sections::get();
  std::vector<bool> marked = sections.marks(all);
  std::string conversions;
  for (const std::string& name : names_of(source, all)) {
    sections.mark(name, marked);
    conversions += conversion(name);
  }
  return sections.text(marked) + conversions + "#line 1 \"program\"\n" + std::string(source);
}

}  // namespace outboard::host
