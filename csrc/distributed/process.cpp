// SPDX-License-Identifier: Apache-2.0
#include "distributed/process.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace outboard::distributed {
namespace {

/// When a process began, in clock ticks since the machine did; 0 if it has ended.
uint64_t begin_of(int32_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return 0;
  const size_t name_end = line.rfind(')');  // the name may have spaces and brackets
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return 0;
  const char state = line[name_end + 2];
  if (state == 'Z' || state == 'X') return 0;
  size_t position = name_end + 1;
  for (int field = 2; field < 21; ++field) position = line.find(' ', position + 1);
  return std::strtoull(line.c_str() + position, nullptr, 10);
}

}  // namespace

ProcessIdentity own_identity() {
  ProcessIdentity own{};
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  id.copy(own.boot, sizeof(own.boot) - 1);
  struct stat status{};
  if (stat("/proc/self/ns/pid", &status) == 0) own.pid_namespace = status.st_ino;
  own.process = getpid();
  own.begin = begin_of(own.process);
  return own;
}

bool are_near(const ProcessIdentity& one, const ProcessIdentity& other) {
  return one.pid_namespace != 0 && one.begin != 0 && one.boot[0] != 0 && other.begin != 0 &&
         one.pid_namespace == other.pid_namespace && std::strcmp(one.boot, other.boot) == 0;
}

bool has_ended(const ProcessIdentity& near) { return begin_of(near.process) != near.begin; }

}  // namespace outboard::distributed
