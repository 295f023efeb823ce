// SPDX-License-Identifier: Apache-2.0
#include "common/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace outboard::common {
namespace {

/// The number behind `key` in a file, or, with an empty key, at its beginning, in units of `unit`; `fallback` if there
/// is none: a limit may be "max".
uint64_t number_in(const std::string& path, const std::string& key, uint64_t unit, uint64_t fallback) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    if (!key.empty() && word != key) continue;
    if (!key.empty() && !(file >> word)) return fallback;
    const bool digits = word.size() < 20 && word.find_first_not_of("0123456789") == std::string::npos;
    return digits ? std::stoull(word) * unit : fallback;
  }
  return fallback;
}

/// The names of one version of control groups.
struct Hierarchy {
  const char *root, *limit, *used, *cache;
};
constexpr Hierarchy kSecond{"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
constexpr Hierarchy kFirst{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                           "total_inactive_file"};

/// Applies the limits of a group and of those around it. In a container the path may be one of the host: what does not
/// exist here limits nothing.
void apply(const std::string& root, const Hierarchy& names, std::string path, HostMemory& memory) {
  for (;;) {
    const std::string folder = root + names.root + path + "/";
    const uint64_t limit = number_in(folder + names.limit, "", 1, UINT64_MAX);
    const uint64_t cache = number_in(folder + "memory.stat", names.cache, 1, 0);
    const uint64_t used = number_in(folder + names.used, "", 1, 0);
    const uint64_t needed = used - std::min(used, cache);  // files that were read go when memory is wanted
    memory.total = std::min(memory.total, limit);
    memory.available = std::min(memory.available, limit - std::min(limit, needed));
    if (path.empty()) return;
    path.resize(path.rfind('/'));
  }
}

bool contains_memory(const std::string& controllers) {
  return ("," + controllers + ",").find(",memory,") != std::string::npos;
}

void apply_groups(const std::string& root, HostMemory& memory) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string number, controllers, path;
    std::getline(fields, number, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    if (path.empty() || path.front() != '/') continue;
    if (path == "/") path.clear();
    if (controllers.empty()) apply(root, kSecond, path, memory);
    if (contains_memory(controllers)) apply(root, kFirst, path, memory);
  }
}

}  // namespace

HostMemory HostMemory::now() { return now(""); }

HostMemory HostMemory::now(const std::string& root) {
  const auto pages = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  HostMemory memory{number_in(root + "/proc/meminfo", "MemTotal:", 1024, pages), 0};
  memory.available = number_in(root + "/proc/meminfo", "MemAvailable:", 1024, memory.total);
  apply_groups(root, memory);
  return memory;
}

}  // namespace outboard::common
