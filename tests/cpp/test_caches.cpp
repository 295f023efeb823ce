// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"
#include "common/caches.h"

/// The caches that a processor has, as far as the system tells.
using outboard::common::Caches;

namespace {

namespace fs = std::filesystem;

class Machine {
 public:
  Machine() {
    char name[] = "/tmp/outboard-caches-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~Machine() { fs::remove_all(root_); }

  void add(const std::string& level, const std::string& type, const std::string& size) {
    const fs::path folder = root_ + "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(count_++);
    fs::create_directories(folder);
    std::ofstream(folder / "level") << level << "\n";
    std::ofstream(folder / "type") << type << "\n";
    std::ofstream(folder / "size") << size << "\n";
  }
  bool has(uint64_t near, uint64_t last) const {
    const Caches caches = Caches::now(root_);
    return caches.near == near && caches.last == last;
  }

 private:
  std::string root_;
  int count_ = 0;
};

constexpr uint64_t kKilo = 1024;

}  // namespace

TEST(the_first_and_the_last_cache_of_data) {
  Machine machine;
  machine.add("1", "Instruction", "64K");
  machine.add("1", "Data", "48K");
  machine.add("2", "Unified", "1024K");
  machine.add("3", "Unified", "32M");
  CHECK(machine.has(48 * kKilo, 32 * kKilo * kKilo));
}

TEST(one_cache_is_the_first_and_the_last) {
  Machine machine;
  machine.add("1", "Unified", "4096");
  CHECK(machine.has(4096, 4096));
}

TEST(what_the_system_does_not_tell_is_0) {
  Machine machine;
  CHECK(machine.has(0, 0));
  machine.add("1", "Data", "");
  machine.add("2", "Unified", "many");
  machine.add("x", "Unified", "1024K");
  CHECK(machine.has(0, 0));
}

TEST(of_this_machine_the_last_is_no_smaller) {
  const Caches caches = Caches::now();
  CHECK(caches.last >= caches.near);
}

int main() { return check::run_all(); }
