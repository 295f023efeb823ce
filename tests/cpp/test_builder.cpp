// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "runtime/base/error.h"
#include "runtime/device.h"
#include "runtime/programs/build_process.h"

/// Programs built by other processes. OUTBOARD_BUILDER comes from CMake: the path of outboard-build.
using namespace outboard;
using fixture::device;

namespace {

/// A program that no other test and no earlier run has built.
std::string source(int number) {
  return "__kernel void k(__global float* x) { x[0] += " + std::to_string(number) + ".5f * " +
         std::to_string(getpid()) + "; }";
}

/// Asks a new cache for programs at once, waits for them, and returns its statistics.
ProgramCache::Statistics build_many(int first, int count) {
  ProgramCache cache(device());
  std::vector<KernelUse> kernels;
  for (int i = 0; i < count; ++i) kernels.push_back(cache.kernel(source(first + i), "", "k"));
  for (const KernelUse& kernel : kernels) CHECK(kernel->get() != nullptr);
  return cache.statistics();
}

/// The builder, except that something kills it after some seconds.
std::string mortal_builder(const std::string& seconds) {
  const std::string path = "/tmp/outboard-builder-" + std::to_string(getpid()) + "-" + seconds;
  std::ofstream(path) << "#!/bin/sh\n(sleep " << seconds
                      << "; kill -9 $$) >/dev/null 2>&1 &\nexec " OUTBOARD_BUILDER " \"$@\"\n";
  chmod(path.c_str(), 0700);
  return path;
}

bool builds_wait() { return device().properties().serial_builds != 0 && std::thread::hardware_concurrency() > 1; }

}  // namespace

TEST(a_process_builds) {
  BuildProcess::set_executable(OUTBOARD_BUILDER);
  const auto process = BuildProcess::start(device());
  CHECK(process != nullptr);
  const uint64_t built_here = fixture::calls("program_build");
  for (int i = 0; i < 2; ++i) {
    const std::optional<std::string> binary = process->build(source(i), "");
    CHECK(binary.has_value() && !binary->empty());
    const ob_driver& driver = device().driver();
    ob_program program = nullptr;
    ob_kernel kernel = nullptr;
    CHECK(driver.program_load(device().handle(), binary->data(), binary->size(), &program) == OB_OK);
    CHECK(driver.kernel_get(program, "k", &kernel) == OB_OK);
    driver.program_release(program);
  }
  CHECK_EQ(fixture::calls("program_build"), built_here);
}

TEST(a_process_outlives_a_wrong_program) {
  BuildProcess::set_executable(OUTBOARD_BUILDER);
  const auto process = BuildProcess::start(device());
  const std::optional<std::string> binary = process->build("__kernel void k() { nonsense; }", "");
  CHECK(binary.has_value() && binary->empty());
  CHECK(process->build(source(2), "").has_value());
}

TEST(a_dead_process_is_noticed) {
  BuildProcess::set_executable(OUTBOARD_BUILDER);
  const auto process = BuildProcess::start(device());
  CHECK(process->build(source(3), "").has_value());
  kill(process->id(), SIGKILL);
  CHECK(!process->build(source(4), "").has_value());
}

TEST(builds_that_would_wait_go_elsewhere) {
  BuildProcess::set_executable(OUTBOARD_BUILDER);
  const uint64_t built_here = fixture::calls("program_build");
  const ProgramCache::Statistics made = build_many(100, 16);
  CHECK_EQ(made.built, 16);
  CHECK_EQ(fixture::calls("program_build") - built_here, static_cast<uint64_t>(16 - made.elsewhere));
  CHECK_EQ(made.elsewhere > 0, builds_wait());
}

TEST(without_an_executable_programs_are_built_here) {
  for (const char* path : {"", "/no/such/program"}) {
    BuildProcess::set_executable(path);
    const ProgramCache::Statistics made = build_many(path[0] == '\0' ? 200 : 300, 4);
    CHECK_EQ(made.built, 4);
    CHECK_EQ(made.elsewhere, 0);
  }
}

TEST(what_a_killed_process_did_not_build_is_built_here) {
  for (const char* seconds : {"0", "0.3"}) {  // before its first program, and amid one of them
    const std::string path = mortal_builder(seconds);
    BuildProcess::set_executable(path);
    const ProgramCache::Statistics made = build_many(seconds[1] == '\0' ? 400 : 500, 24);
    unlink(path.c_str());
    CHECK_EQ(made.built, 24);
    CHECK(made.elsewhere < 24);
  }
}

TEST(a_process_for_another_device_refuses) {
  const std::string refused = std::string(OUTBOARD_BUILDER) + " " OUTBOARD_TEST_DRIVER " 0 another-key </dev/null";
  CHECK(std::system((refused + " 2>/dev/null").c_str()) != 0);
}

int main() { return fixture::run_all(); }
