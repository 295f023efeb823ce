// SPDX-License-Identifier: Apache-2.0
#include "fixture.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <thread>

using namespace outboard;

namespace fixture {
namespace {

template <typename Function>
Function symbol(const char* name) {
  void* found = dlsym(dlopen(OUTBOARD_TEST_DRIVER, RTLD_NOW), name);
  if (found == nullptr) throw std::runtime_error(std::string("the driver under test lacks ") + name);
  return reinterpret_cast<Function>(found);
}

}  // namespace

Device& device() { return Runtime::initialize({OUTBOARD_TEST_DRIVER}).device(0); }

void fail(const char* function, uint64_t nth, ob_status status) {
  static const auto target = symbol<void (*)(const char*, uint64_t, int)>("outboard_faults_fail");
  target(function, nth, status);
}

uint64_t calls(const char* function) {
  static const auto target = symbol<uint64_t (*)(const char*)>("outboard_faults_calls");
  return target(function);
}

Holder upload(const std::vector<float>& values) {
  Holder holder(Allocation::create(device(), values.size() * sizeof(float)));
  Stream& stream = device().default_stream();
  stream.copy(OB_HOST_TO_DEVICE, Pin(*holder, stream).pointer(), reinterpret_cast<uint64_t>(values.data()),
              values.size() * sizeof(float));
  stream.synchronize();
  return holder;
}

std::vector<float> download(Allocation& allocation, size_t count) {
  std::vector<float> values(count);
  Stream& stream = device().default_stream();
  stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(values.data()), Pin(allocation, stream).pointer(),
              count * sizeof(float));
  stream.synchronize();
  return values;
}

Kernel& slow_kernel() {
  return device().programs().kernel(
      "__kernel void slow(__global volatile float* x, long n) {"
      "  float s = x[0]; for (long i = 0; i < n; ++i) s = s * 0.5f + 1.0f;"  // a chain no compiler can shorten
      "  x[0] = s > 1e30f ? s : x[0] + 1.0f; }",
      "", "slow");
}

void keep_busy(Stream& stream, ob_ptr x) {
  const int64_t steps = 20000000;
  const ob_argument arguments[2] = {{1, sizeof(x), &x}, {0, sizeof(steps), &steps}};
  const uint64_t global[3] = {1, 1, 1};
  const uint32_t local[3] = {1, 1, 1};
  stream.launch(slow_kernel(), global, local, arguments, 2);
}

int run_again(const std::string& argument) {
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "test", argument.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  for (int waited = 0; waited < 600; ++waited) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return -1;
}

}  // namespace fixture
