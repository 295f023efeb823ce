// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"
#include "common/host_memory.h"

/// What a process may use of its machine's memory: less where a control group says so.
using outboard::common::HostMemory;

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMachine = uint64_t{16} << 20, kLeft = uint64_t{8} << 20;

/// A machine of 16 MiB, of which 8 are left.
class Machine {
 public:
  Machine() {
    char name[] = "/tmp/outboard-memory-XXXXXX";
    root_ = mkdtemp(name);
    write("/proc/meminfo", "MemTotal: 16384 kB\nMemFree: 1 kB\nMemAvailable: 8192 kB\n");
  }
  ~Machine() { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  HostMemory memory() const { return HostMemory::now(root_); }
  bool has(uint64_t total, uint64_t available) const {
    return memory().total == total && memory().available == available;
  }

 private:
  std::string root_;
};

}  // namespace

TEST(this_machine_has_memory) {
  const HostMemory memory = HostMemory::now();
  CHECK(memory.total > 0 && memory.available > 0 && memory.available <= memory.total);
}

TEST(a_machine_without_groups) { CHECK(Machine().has(kMachine, kLeft)); }

TEST(a_group_without_limits) {
  const Machine machine;
  machine.write("/proc/self/cgroup", "0::/user\n");
  machine.write("/sys/fs/cgroup/user/memory.max", "max\n");
  CHECK(machine.has(kMachine, kLeft));
}

TEST(the_smallest_group_around_the_process_counts) {
  const Machine machine;
  machine.write("/proc/self/cgroup", "0::/outer/inner\n");
  machine.write("/sys/fs/cgroup/outer/memory.max", "3000000\n");
  machine.write("/sys/fs/cgroup/outer/memory.current", "2500000\n");
  machine.write("/sys/fs/cgroup/outer/inner/memory.max", "4000000\n");
  machine.write("/sys/fs/cgroup/outer/inner/memory.current", "1000\n");
  CHECK(machine.has(3000000, 500000));
}

TEST(files_that_were_read_are_no_use_of_memory) {
  const Machine machine;
  machine.write("/proc/self/cgroup", "0::/\n");
  machine.write("/sys/fs/cgroup/memory.max", "3000000\n");
  machine.write("/sys/fs/cgroup/memory.current", "2500000\n");
  machine.write("/sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 1500000\n");
  CHECK(machine.has(3000000, 2000000));
}

TEST(groups_of_the_first_version) {
  const Machine machine;
  machine.write("/proc/self/cgroup", "5:cpu:/a\n4:hugetlb,memory:/jobs/one\n0::/\n");
  machine.write("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "5000000\n");
  machine.write("/sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "6000000\n");
  machine.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(machine.has(5000000, 0));
}

TEST(a_path_of_the_host_in_a_container) {
  const Machine machine;
  machine.write("/proc/self/cgroup", "0::/host/only\n");
  machine.write("/sys/fs/cgroup/memory.max", "7000000\n");
  CHECK(machine.has(7000000, 7000000));
}

int main() { return check::run_all(); }
