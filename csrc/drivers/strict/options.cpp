// SPDX-License-Identifier: Apache-2.0
#include "strict/options.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace outboard::strict {
namespace {

constexpr uint64_t kMemory = uint64_t{2} << 30;
constexpr uint64_t kArgumentBytes = 1024;  // what every device takes

std::string text(const char* name, const char* otherwise) {
  const char* value = std::getenv((std::string("OUTBOARD_STRICT_") + name).c_str());
  return value == nullptr || *value == '\0' ? otherwise : value;
}

/// The library of a driver that lies beside this one; a path stands for itself.
std::string library_of(const std::string& driver) {
  if (driver.find('/') != std::string::npos) return driver;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&library_of), &info) == 0) return driver;
  const std::string self = info.dli_fname;
  return self.substr(0, self.rfind('/') + 1) + "liboutboard_" + driver + ".so";
}

/// A number of bytes or of anything else, with KiB, MiB or GiB behind it or nothing. False if it is not a number.
bool parse(const std::string& value, uint64_t& parsed) {
  char* end = nullptr;
  parsed = std::strtoull(value.c_str(), &end, 10);
  if (end == value.c_str() || value[0] == '-') return false;
  const std::string unit = end;
  const int shift = unit.empty() ? 0 : unit == "KiB" ? 10 : unit == "MiB" ? 20 : unit == "GiB" ? 30 : -1;
  if (shift < 0 || (parsed << shift) >> shift != parsed) return false;
  parsed <<= shift;
  return true;
}

/// `declared` becomes at most `wanted`; where the driver declares nothing (0), `wanted`.
template <typename T>
void lower(T& declared, uint64_t wanted) {
  if (declared == 0 || wanted < declared) declared = static_cast<T>(wanted);
}

void withdraw(uint8_t& declared, uint64_t wanted) {
  if (wanted == 0) declared = 0;
}

}  // namespace

const Options& Options::get() {
  static const Options* const options = new Options;
  return *options;
}

Options::Options() {
  driver = library_of(text("DRIVER", "opencl"));
  type_ = text("TYPE", "");
  if (!type_.empty() && type_ != "cpu" && type_ != "gpu" && type_ != "accelerator") {
    problem = "OUTBOARD_STRICT_TYPE is '" + type_ + "': use cpu, gpu or accelerator";
  }
  dialect_ = text("DIALECT", "");
  compiler_ = text("COMPILER", "");
  execution_ = text("EXECUTION", "");
  if (!execution_.empty() && execution_ != "vector" && execution_ != "simt") {
    problem = "OUTBOARD_STRICT_EXECUTION is '" + execution_ + "': use vector or simt";
  }
  delay = number("DELAY", delay);
  seed = number("SEED", seed);
  graphs = number("GRAPHS", 1) != 0;
  abort = number("ABORT", 0) != 0;
  work_group_ = number("WORK_GROUP", kAsItIs);
  local_memory_ = number("LOCAL_MEMORY", kAsItIs);
  argument_bytes_ = number("ARGUMENT_BYTES", kArgumentBytes);
  max_allocation_ = number("MAX_ALLOCATION", kAsItIs);
  memory_ = number("MEMORY", kMemory);
  alignment_ = number("ALIGNMENT", kAsItIs);
  fp16_ = number("FP16", kAsItIs);
  fp64_ = number("FP64", kAsItIs);
  int64_atomics_ = number("INT64_ATOMICS", kAsItIs);
  sub_group_ = number("SUB_GROUP", kAsItIs);
  vector_width_ = number("VECTOR_WIDTH", kAsItIs);
  near_cache_ = number("NEAR_CACHE", kAsItIs);
  last_cache_ = number("LAST_CACHE", kAsItIs);
}

uint64_t Options::number(const char* name, uint64_t otherwise) {
  const std::string value = text(name, "");
  uint64_t parsed = otherwise;
  if (value.empty() || parse(value, parsed)) return parsed;
  problem = std::string("OUTBOARD_STRICT_") + name + " is '" + value + "': use a number, such as 32 or 64MiB";
  return otherwise;
}

void Options::restrict(ob_device_properties& p) const {
  lower(p.total_memory, memory_);
  lower(p.max_allocation, std::min(max_allocation_, p.total_memory));
  if (work_group_ != kAsItIs) lower(p.max_work_group_size, work_group_);
  if (local_memory_ != kAsItIs) p.local_memory = std::min(p.local_memory, local_memory_);
  lower(p.max_argument_bytes, argument_bytes_);
  if (alignment_ != kAsItIs) lower(p.alignment, alignment_);
  if (sub_group_ != kAsItIs) lower(p.sub_group_size, sub_group_);
  // Preferences, no limits. If a width is given, it decides how programs look.
  if (vector_width_ != kAsItIs)
    p.vector_width = static_cast<uint32_t>(vector_width_), p.execution = OB_EXECUTION_UNKNOWN;
  if (!execution_.empty()) p.execution = execution_ == "vector" ? OB_EXECUTION_VECTOR : OB_EXECUTION_SIMT;
  if (near_cache_ != kAsItIs) p.near_cache = near_cache_;
  if (last_cache_ != kAsItIs) p.last_cache = last_cache_;
  withdraw(p.has_fp16, fp16_);
  withdraw(p.has_fp64, fp64_);
  withdraw(p.has_int64_atomics, int64_atomics_);
  if (!type_.empty()) {
    p.type = type_ == "cpu" ? OB_DEVICE_CPU : type_ == "gpu" ? OB_DEVICE_GPU : OB_DEVICE_ACCELERATOR;
  }
  if (!dialect_.empty()) std::snprintf(p.dialect, sizeof(p.dialect), "%s", dialect_.c_str());
  if (!compiler_.empty()) std::snprintf(p.compiler, sizeof(p.compiler), "%s", compiler_.c_str());
  p.host_accessible = p.takes_host_memory = 0;
  using Number = unsigned long long;
  char key[192];
  std::snprintf(key, sizeof(key), "|strict %s,%d,%u,%u,%u,%u,%llu,%llu,%llu,%llu,%llu,%d%d%d", p.dialect,
                static_cast<int>(p.type), p.max_work_group_size, p.sub_group_size, p.vector_width, p.execution,
                static_cast<Number>(p.local_memory), static_cast<Number>(p.max_argument_bytes),
                static_cast<Number>(p.alignment), static_cast<Number>(p.near_cache), static_cast<Number>(p.last_cache),
                p.has_fp16, p.has_fp64, p.has_int64_atomics);
  const size_t room = sizeof(p.cache_key) - std::strlen(key) - 1;
  p.cache_key[std::min(std::strlen(p.cache_key), room)] = '\0';  // what tells the limits must fit
  std::strncat(p.cache_key, key, sizeof(p.cache_key) - std::strlen(p.cache_key) - 1);
}

}  // namespace outboard::strict
