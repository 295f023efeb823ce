// SPDX-License-Identifier: Apache-2.0
#include "host/instructions.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <unordered_map>

#include "host/item.h"

namespace outboard::host {
namespace {

constexpr std::string_view kDefine = "define ", kDeclare = "declare ";
/// Metadata that all kernels have, and nothing else.
constexpr std::string_view kKernelMark = " !kernel_arg_addr_space ";
/// Since version 21, Clang has kernels call a copy of them, which carries the same metadata.
constexpr std::string_view kCopyPrefix = "__clang_ocl_kern_imp_";
constexpr std::string_view kLocalArray = " = internal global ";
/// The same of a program in CUDA C++ (cuda_text.cpp), and what names begin with that C++ has composed.
constexpr std::string_view kSharedArray = " = internal thread_local global ", kComposed = "_Z";

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

/// The number at the front of a text, which is taken from it.
std::optional<uint64_t> take_number(std::string_view& text) {
  uint64_t number = 0;
  size_t digits = 0;
  while (digits < text.size() && digits < 18 && std::isdigit(static_cast<unsigned char>(text[digits])) != 0) {
    number = number * 10 + static_cast<uint64_t>(text[digits++] - '0');
  }
  if (digits == 0) return std::nullopt;
  text.remove_prefix(digits);
  return number;
}

/// Bytes in memory of the type at the front of a text, which is taken from it; nothing for types that are not known.
std::optional<uint64_t> take_type(std::string_view& text) {
  static constexpr struct {
    std::string_view name;
    uint64_t bytes;
  } kScalars[] = {{"ptr", 8}, {"float", 4}, {"double", 8}, {"half", 2}, {"bfloat", 2},
                  {"i16", 2}, {"i32", 4},   {"i64", 8},    {"i8", 1},   {"i1", 1}};
  for (const auto& scalar : kScalars) {
    if (!starts_with(text, scalar.name)) continue;
    text.remove_prefix(scalar.name.size());
    return scalar.bytes;
  }
  if (text.empty() || (text.front() != '[' && text.front() != '<')) return std::nullopt;
  const bool is_vector = text.front() == '<';
  text.remove_prefix(1);
  std::optional<uint64_t> count = take_number(text);
  if (!count || !starts_with(text, " x ")) return std::nullopt;
  text.remove_prefix(3);
  const std::optional<uint64_t> each = take_type(text);
  if (!each || text.empty()) return std::nullopt;
  text.remove_prefix(1);
  return *each * (is_vector && *count == 3 ? 4 : *count);
}

/// The position of the parenthesis that closes the one at `open`.
size_t closing(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '(') ++depth;
    if (text[i] == ')' && --depth == 0) return i;
  }
  throw BuildError("the compiler wrote a function that does not end: " + std::string(text));
}

std::vector<std::string_view> split_parameters(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (std::string_view("(<[{").find(text[i]) != std::string_view::npos) ++depth;
    if (std::string_view(")>]}").find(text[i]) != std::string_view::npos) --depth;
    if (text[i] != ',' || depth != 0) continue;
    parts.push_back(trimmed(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  if (!trimmed(text).empty()) parts.push_back(trimmed(text.substr(begin)));
  return parts;
}

/// The first line of a function's definition, taken apart.
struct Definition {
  explicit Definition(std::string_view line) {
    const size_t at = line.find('@'), open = line.find('(', at), close = closing(line, open);
    before = trimmed(line.substr(kDefine.size(), at - kDefine.size()));
    name = line.substr(at + 1, open - at - 1);
    parameters = line.substr(open + 1, close - open - 1);
    after = line.substr(close + 1);
    drop_linkage();
  }

  /// The line again, of a function that is not exported.
  std::string text() const {
    return "define internal " + std::string(before) + " @" + std::string(name) + "(" + std::string(parameters) + ")" +
           std::string(after);
  }

  /// Of a program in CUDA C++, kernels alone have names as in C.
  bool is_kernel(Language language) const {
    if (language == Language::cuda) return !starts_with(name, kComposed);
    return contains(after, kKernelMark) && !starts_with(name, kCopyPrefix);
  }

  /// The result's type, with its attributes.
  std::string_view before;
  std::string_view name, parameters;
  std::string_view after;  // attributes and metadata

 private:
  /// And the calling convention of kernels, which nobody may call.
  void drop_linkage() {
    static const std::set<std::string_view> words = {
        "private",  "internal",  "available_externally", "linkonce", "weak",   "linkonce_odr", "weak_odr",
        "external", "dso_local", "dso_preemptable",      "default",  "hidden", "protected",    "spir_kernel"};
    for (;;) {
      const std::string_view word = before.substr(0, before.find(' '));
      if (words.count(word) == 0) return;
      before = trimmed(before.substr(word.size()));
    }
  }
};

/// Metadata in a line: what follows `!name !`, or an empty text.
std::string_view metadata_number(std::string_view line, std::string_view name) {
  const std::string mark = "!" + std::string(name) + " !";
  const size_t at = line.find(mark);
  if (at == std::string_view::npos) return {};
  line.remove_prefix(at + mark.size());
  return line.substr(0, line.find_first_not_of("0123456789"));
}

/// The numbers in `!{i32 1, i32 2, ...}`.
std::vector<uint32_t> numbers_in(std::string_view metadata) {
  std::vector<uint32_t> numbers;
  for (size_t at = metadata.find("i32 "); at != std::string_view::npos; at = metadata.find("i32 ")) {
    metadata.remove_prefix(at + 4);
    numbers.push_back(static_cast<uint32_t>(take_number(metadata).value_or(0)));
  }
  return numbers;
}

class Program {
 public:
  Program(const std::string& assembly, Language language) : language_(language) {
    std::istringstream lines(assembly);
    for (std::string line; std::getline(lines, line);) lines_.push_back(std::move(line));
    for (const std::string& line : lines_) {
      const size_t equals = line.find(" = !{");
      if (line[0] == '!' && equals != std::string::npos) metadata_[line.substr(1, equals - 1)] = line.substr(equals);
      if (contains(line, "call void @obh_barrier(")) has_barriers_ = true;
    }
  }

  std::string make_runnable(std::vector<KernelInterface>* kernels) {
    std::string result, functions;
    for (const std::string& line : lines_) {
      if (starts_with(line, kDefine)) {
        const Definition definition(line);
        result += definition.text() + "\n";
        if (!definition.is_kernel(language_)) continue;
        kernels->push_back(interface_of(definition));
        functions += run_function(definition, kernels->back());
      } else if (!starts_with(line, kDeclare) || !is_own(line)) {
        result += with_own_locals(line) + "\n";
      }
    }
    return result + own_functions() + functions;
  }

 private:
  static bool is_own(std::string_view line) {
    return contains(line, " @obh_item(") || contains(line, " @obh_barrier(") ||
           contains(line, " @llvm.threadlocal.address");
  }

  /// Clang makes arrays in local memory variables of the program, which are not initialized, as no others are.
  static bool is_local_array(std::string_view line) {
    return starts_with(line, "@") && contains(line, kLocalArray) && contains(line, " undef");
  }

  static std::string with_own_locals(const std::string& line) {
    if (!is_local_array(line)) return line;
    std::string changed = line;
    return changed.replace(changed.find(kLocalArray), kLocalArray.size(), " = internal thread_local global ");
  }

  /// Bytes of the kernel's arrays, whose names begin with its own.
  uint64_t local_bytes(std::string_view kernel) const {
    const bool cuda = language_ == Language::cuda;
    const std::string own(kernel), composed = "@_ZZ" + std::to_string(own.size()) + own + "E";
    const std::string start = cuda ? composed : "@" + own + ".";
    const std::string_view mark = cuda ? kSharedArray : kLocalArray;
    uint64_t bytes = 0;
    for (const std::string& line : lines_) {
      if (!starts_with(line, start) || !contains(line, mark) || (!cuda && !is_local_array(line))) continue;
      std::string_view type = std::string_view(line).substr(line.find(mark) + mark.size());
      bytes += take_type(type).value_or(0);
    }
    return bytes;
  }

  std::string_view metadata(std::string_view line, std::string_view name) const {
    const auto found = metadata_.find(std::string(metadata_number(line, name)));
    return found == metadata_.end() ? std::string_view() : found->second;
  }

  KernelInterface interface_of(const Definition& definition) const {
    constexpr uint32_t kLocal = 3;
    KernelInterface kernel;
    kernel.name = definition.name;
    kernel.has_barriers = has_barriers_;
    kernel.local_bytes = local_bytes(definition.name);
    const std::vector<uint32_t> spaces = numbers_in(metadata(definition.after, "kernel_arg_addr_space"));
    const std::vector<uint32_t> required = numbers_in(metadata(definition.after, "reqd_work_group_size"));
    if (required.size() == 3) std::copy(required.begin(), required.end(), kernel.required_local_size);
    for (std::string_view parameter : split_parameters(definition.parameters)) {
      const size_t index = kernel.value_bytes.size();
      const bool is_pointer = starts_with(parameter, "ptr ");
      const std::optional<uint64_t> bytes = take_type(parameter);
      const bool local = is_pointer && index < spaces.size() && spaces[index] == kLocal;
      if (!bytes || local || contains(parameter, "byval(")) {
        throw BuildError("kernel " + kernel.name + ": argument " + std::to_string(index) +
                         " is neither a pointer to global memory nor a number");
      }
      kernel.value_bytes.push_back(is_pointer ? 0 : static_cast<uint32_t>(*bytes));
    }
    return kernel;
  }

  /// What the built-in functions call.
  static std::string own_functions() {
    const std::string barrier = std::to_string(offsetof(Item, barrier));
    return "@obh.item = internal thread_local global ptr null, align 8\n"
           "declare nonnull ptr @llvm.threadlocal.address.p0(ptr nonnull)\n"
           "define internal ptr @obh_item() alwaysinline nounwind {\n"
           "  %place = call ptr @llvm.threadlocal.address.p0(ptr @obh.item)\n"
           "  %item = load ptr, ptr %place, align 8\n  ret ptr %item\n}\n"
           "define internal void @obh_barrier(i32 %whole) alwaysinline nounwind {\n"
           "  %item = call ptr @obh_item()\n  %place = getelementptr i8, ptr %item, i64 " +
           barrier +
           "\n  %wait = load ptr, ptr %place, align 8\n"
           "  call void %wait(ptr %item, i32 %whole)\n  ret void\n}\n";
  }

  /// A kernel's `RunGroups`. Arguments are read once for all groups; the first number of an item is its group's.
  static std::string run_function(const Definition& kernel, const KernelInterface& interface) {
    std::string text = "define void @" + run_symbol(interface.name) +
                       "(ptr %arguments, ptr %item, i64 %begin, i64 %end) " + attributes(kernel.after) +
                       "{\nentry:\n  %own = call ptr @llvm.threadlocal.address.p0(ptr @obh.item)\n"
                       "  store ptr %item, ptr %own, align 8\n";
    std::string passed;
    const std::vector<std::string_view> parameters = split_parameters(kernel.parameters);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::string n = std::to_string(i);
      const size_t offset = i * sizeof(ob_argument) + offsetof(ob_argument, value);
      const std::string type = type_of(parameters[i]);
      text += "  %p" + n + " = getelementptr i8, ptr %arguments, i64 " + std::to_string(offset) + "\n  %v" + n +
              " = load ptr, ptr %p" + n + ", align 8\n  %a" + n + " = load " + type + ", ptr %v" + n + ", align 1\n";
      passed += (i > 0 ? ", " : "") + without_name(parameters[i]) + " %a" + n;
    }
    return text +
           "  br label %loop\nloop:\n  %x = phi i64 [ %begin, %entry ], [ %next, %loop ]\n"
           "  store i64 %x, ptr %item, align 8\n  call " +
           std::string(kernel.before) + " @" + interface.name + "(" + passed +
           ")\n  %next = add i64 %x, 1\n  %more = icmp ult i64 %next, %end\n"
           "  br i1 %more, label %loop, label %done\ndone:\n  ret void\n}\n";
  }

  static std::string type_of(std::string_view parameter) {
    std::string_view rest = parameter;
    take_type(rest);
    return std::string(parameter.substr(0, parameter.size() - rest.size()));
  }

  static std::string without_name(std::string_view parameter) {
    return std::string(trimmed(parameter.substr(0, parameter.rfind('%'))));
  }

  /// The reference to a group of attributes, for which processor the code is among them.
  static std::string attributes(std::string_view after) {
    const size_t at = after.find('#');
    if (at == std::string_view::npos) return "";
    return std::string(after.substr(at, after.find(' ', at) - at)) + " ";
  }

  const Language language_;
  std::vector<std::string> lines_;
  std::unordered_map<std::string, std::string> metadata_;
  bool has_barriers_ = false;
};

}  // namespace

std::string run_symbol(const std::string& kernel) { return "obh.run." + kernel; }

std::string make_runnable(const std::string& assembly, Language language, std::vector<KernelInterface>* kernels) {
  return Program(assembly, language).make_runnable(kernels);
}

}  // namespace outboard::host
