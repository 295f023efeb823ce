// SPDX-License-Identifier: Apache-2.0
#include "host/compiler.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "host/builtins.h"
#include "host/cuda_text.h"
#include "host/levels.h"
#include "host/process.h"
#include "runtime/base/sha256.h"

namespace outboard::host {
namespace {

constexpr int kOldestClang = 16, kNewestClang = 26;
constexpr const char* kMissing =
    "the host driver compiles with Clang and LLD, which were not found. 'pip install ziglang' brings both, and so "
    "does 'apt install clang lld' (version 16 or newer) on Debian and Ubuntu. "
    "OUTBOARD_HOST_COMPILER names one elsewhere: the path of clang, or of zig.";

/// A change of how programs are compiled or called, by which binaries made before are not taken for new ones.
constexpr const char* kRevision = "1";

/// Defined for programs where the processor multiplies pairs of bfloat16.
constexpr const char* kBfloat16Products = "OB_AVX512_BF16";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool is_program(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

/// The path of a program on PATH, or an empty text.
std::string on_path(const std::string& name) {
  std::istringstream folders(variable("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.empty() && folder.front() == '/' && is_program(folder + "/" + name)) return folder + "/" + name;
  }
  return {};
}

std::string real_path(const std::string& path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) != nullptr ? resolved : path;
}

bool is_zig(const std::string& path) { return path.substr(folder_of(path).size()).rfind("zig", 0) == 0; }

/// Clang on PATH, or Zig, which contains one.
std::string installed_compiler() {
  for (int version = kNewestClang; version >= kOldestClang; --version) {
    if (std::string path = on_path("clang-" + std::to_string(version)); !path.empty()) return path;
  }
  const std::string clang = on_path("clang");
  return clang.empty() ? on_path("zig") : clang;
}

/// LLD beside Clang, or on PATH.
std::string linker_for(const std::string& clang) {
  const std::string beside = folder_of(real_path(clang)) + "ld.lld";
  if (is_program(beside)) return beside;
  if (std::string path = on_path("ld.lld"); !path.empty()) return path;
  for (int version = kNewestClang; version >= kOldestClang; --version) {
    if (std::string path = on_path("ld.lld-" + std::to_string(version)); !path.empty()) return path;
  }
  return {};
}

/// The file that the C library's mathematical functions come from in this process. The address that a name stands for
/// may be one in the program, as in Debian's Python, which is linked to a fixed address: so the program is passed over.
std::string library_of_functions() {
  Dl_info info{};
  void* const function = dlsym(RTLD_NEXT, "cbrt");
  if (function == nullptr || dladdr(function, &info) == 0 || info.dli_fname == nullptr) return {};
  return info.dli_fname;
}

bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

/// Options of clBuildProgram as Clang takes them; others of Clang's could read and write files.
std::vector<std::string> checked_options(const std::string& options) {
  std::istringstream words(options);
  std::vector<std::string> result;
  for (std::string word; words >> word;) {
    if (word == "-D") {
      words >> word;
      word.insert(0, "-D");
    }
    const bool known = starts_with(word, "-cl-") || starts_with(word, "-D") || word == "-w" || word == "-Werror";
    if (!known) throw BuildError("the host driver takes no option '" + word + "'");
    result.push_back(word);
  }
  return result;
}

/// What Clang is told of a processor, by the name that it has for it.
std::vector<std::string> target_options(const std::string& name) {
#if defined(__x86_64__)
  return {"--target=x86_64-linux-gnu", "-march=" + name};
#elif defined(__aarch64__)
  return {"--target=aarch64-linux-gnu", "-mcpu=" + name};
#else
  return {"-mcpu=" + name};
#endif
}

/// The processor that programs are made for: OUTBOARD_HOST_MARCH, or this one.
std::string chosen_processor() {
  const std::string chosen = variable("OUTBOARD_HOST_MARCH");
  return chosen.empty() ? "native" : chosen;
}

/// The line of /proc/cpuinfo that lists what the processor can do.
std::string processor_features() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (starts_with(line, "flags") || starts_with(line, "Features") || starts_with(line, "isa")) return line;
  }
  return {};
}

/// Whether a program has code for instructions that are part of no level. That of a level would do without them.
bool asks_for_more(const std::string& source) { return source.find(kBfloat16Products) != std::string::npos; }

}  // namespace

Compiler Compiler::find(Language language) {
  const std::string chosen = variable("OUTBOARD_HOST_COMPILER");
  const std::string path = chosen.empty() ? installed_compiler() : chosen;
  if (path.empty()) throw std::runtime_error(kMissing);
  if (!is_program(path)) throw std::runtime_error("OUTBOARD_HOST_COMPILER: " + path + " is no program. " + kMissing);
  if (is_zig(path)) return Compiler(language, {path, "clang"}, {path, "ld.lld"});
  const std::string linker = linker_for(path);
  if (linker.empty()) throw std::runtime_error("no ld.lld beside " + path + " nor on PATH: " + kMissing);
  return Compiler(language, {path}, {linker});
}

Compiler::Compiler(Language language, std::vector<std::string> clang, std::vector<std::string> linker)
    : language_(language),
      clang_(std::move(clang)),
      linker_(std::move(linker)),
      target_(target_options(chosen_processor())),
      macros_(macros_of(chosen_processor())) {
  const std::string major = value_of(macros_, "__clang_major__");
  version_ =
      "clang " + major + "." + value_of(macros_, "__clang_minor__") + "." + value_of(macros_, "__clang_patchlevel__");
  if (std::atoi(major.c_str()) < kOldestClang) {
    throw std::runtime_error(clang_[0] + " is " + version_ + ", which is too old: " + kMissing);
  }
  if (defines("__AVX512F__")) target_.emplace_back("-mprefer-vector-width=512");
  fingerprint_ = sha256_hex(macros_ + processor_features() + kRevision).substr(0, 32);
  const std::string level = chosen_processor();
  makes_ = is_level(level) ? level : fingerprint_;
  if (is_level(level) && !reaches(macros_of("native"), level)) {
    throw std::runtime_error("OUTBOARD_HOST_MARCH: this processor cannot run code for " + level);
  }
}

std::string Compiler::macros_of(const std::string& processor) const {
  std::vector<std::string> words = clang_;
  for (const std::string& option : target_options(processor)) words.push_back(option);
  for (const char* word : {"-x", "c", "-dM", "-E", "-"}) words.emplace_back(word);
  return run(words, "");
}

bool Compiler::defines(const std::string& macro) const { return !value_of(macros_, macro).empty(); }

bool Compiler::can_run(const std::string& needs) const { return needs == makes_ || reaches(macros_, needs); }

uint32_t Compiler::vector_width() const { return defines("__AVX512F__") ? 16 : defines("__AVX__") ? 8 : 4; }

bool Compiler::has_fp16() const { return defines("__AVX512FP16__") || defines("__ARM_FEATURE_FP16_VECTOR_ARITHMETIC"); }

std::vector<std::string> Compiler::clang(std::initializer_list<const char*> words) const {
  std::vector<std::string> all = clang_;
  all.insert(all.end(), target_.begin(), target_.end());
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

std::string Compiler::run(std::vector<std::string> words, const std::string& input) const {
  Outcome outcome = run_program(words, input);
  if (outcome.status == 0 && !outcome.output.empty()) return std::move(outcome.output);
  const std::string how = outcome.status < 0 ? "was killed" : "exited with " + std::to_string(outcome.status);
  throw BuildError(words[0] + " " + how + "\n" + outcome.errors);
}

std::string Compiler::front_end(const std::string& source, const std::string& options) const {
  // Halves are declared for memory alone; `half` is only a type where arithmetic with it is declared, too.
  std::vector<std::string> front =
      clang({"-x", "cl", "-cl-std=CL3.0", "-cl-no-stdinc", "-Xclang",
             "-cl-ext=-all,+cl_khr_fp64,+__opencl_c_fp64,+cl_khr_fp16,+__opencl_c_generic_address_space,"
             "+__opencl_c_int64,+cl_khr_int64_base_atomics,+cl_khr_int64_extended_atomics,+cl_khr_subgroups,"
             "+__opencl_c_subgroups,+cl_khr_subgroup_shuffle",
             "-O3", "-fPIC", "-w", "-S", "-emit-llvm", "-Xclang", "-disable-llvm-passes"});
  for (const std::string& option : checked_options(options)) front.push_back(option);
  if (defines("__AVX512BF16__")) front.push_back(std::string("-D") + kBfloat16Products);
  for (const char* word : {"-", "-o", "-"}) front.emplace_back(word);
  try {
    return run(front, with_builtins(source, false));
  } catch (const BuildError&) {
    return run(front, with_builtins(source, true));
  }
}

/// Rounds as NVRTC does, which takes products and sums together wherever it can (`--fmad=true`).
std::string Compiler::cuda_front_end(const std::string& source, const std::string& options) const {
  std::vector<std::string> front =
      clang({"-x", "c++", "-std=c++17", "-nostdinc", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics",
             "-fno-strict-aliasing", "-fno-math-errno", "-fsigned-char", "-ffp-contract=fast", "-O3", "-fPIC", "-w",
             "-S", "-emit-llvm", "-Xclang", "-disable-llvm-passes"});
  for (const std::string& option : checked_options(options)) front.push_back(option);
  for (const char* word : {"-", "-o", "-"}) front.emplace_back(word);
  return run(front, with_cuda(source));
}

Code Compiler::build(const std::string& source, const std::string& options) const {
  Code code;
  const std::string instructions =
      language_ == Language::cuda ? cuda_front_end(source, options) : front_end(source, options);
  const std::string assembly = make_runnable(instructions, language_, &code.kernels);
  const std::string object = run(clang({"-x", "ir", "-O3", "-fPIC", "-w", "-c", "-", "-o", "-"}), assembly);
  std::vector<std::string> link = linker_;
  for (const std::string& word : {std::string("-shared"), std::string("--strip-all"), std::string("-o"),
                                  std::string("-"), std::string("/dev/stdin"), library_of_functions()}) {
    link.push_back(word);
  }
  code.library = run(link, object);
  code.needs = asks_for_more(source) ? fingerprint_ : makes_;
  return code;
}

}  // namespace outboard::host
