// SPDX-License-Identifier: Apache-2.0
#include "fixture.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "runtime/base/error.h"

using namespace outboard;

namespace fixture {
namespace {

constexpr int64_t kLargestStreamId = 32;

template <typename Function>
Function symbol(const char* name, const char* library = OUTBOARD_TEST_DRIVER) {
  void* found = dlsym(dlopen(library, RTLD_NOW), name);
  if (found == nullptr) throw std::runtime_error(std::string("the driver under test lacks ") + name);
  return reinterpret_cast<Function>(found);
}

/// A function that only the driver behind the fault-injecting one has.
template <typename Function>
Function inner_symbol(const char* name) {
  return symbol<Function>(name, std::getenv("OUTBOARD_FAULTS_DRIVER"));
}

int64_t streams_of(Device& of) {
  int64_t count = 0;
  for (int64_t id = 0; id <= kLargestStreamId; ++id) {
    try {
      of.stream(id);
      ++count;
    } catch (const Error&) {  // no such stream
    }
  }
  return of.transfer_stream() == nullptr ? count : count + 1;
}

/// Devices, their streams, the programs in their caches and the word for failed assertions live until the process ends.
/// Nothing else may.
void nothing_is_left() {
  int64_t programs = 0, streams = 0, words = 0;
  for (int i = 0; i < Runtime::get().device_count(); ++i) {
    Device& each = Runtime::get().device(i);
    each.synchronize();
    each.empty_cache();
    programs += each.programs().statistics().held;
    streams += streams_of(each);
    words += each.assertions().has_word() ? 1 : 0;
  }
  if (is_strict()) CHECK_EQ(inner_symbol<uint64_t (*)()>("outboard_strict_violations")(), 0u);
  CHECK_EQ(live("memory"), words);
  CHECK_EQ(live("host_memory"), 0);
  CHECK_EQ(live("event"), 0);
  CHECK_EQ(live("graph"), 0);
  CHECK_EQ(live("function"), 0);
  CHECK_EQ(live("program"), programs);
  CHECK_EQ(live("stream"), streams);
}

}  // namespace

int run_all() {
  device();
  check::Register("nothing_is_left", nothing_is_left);  // the last
  return check::run_all();
}

bool is_strict() { return std::string(device().properties().name).rfind("strict", 0) == 0; }

bool can_pause() { return std::string(device().properties().vendor) == "Outboard" && !is_strict(); }

Pause::Pause(Stream& stream) : stream_(&stream) {
  if (is_strict()) {
    inner_symbol<void (*)(int)>("outboard_strict_hold")(1);
  } else {
    static const auto pause = inner_symbol<void (*)(ob_stream)>("outboard_sim_pause");
    pause(stream.handle());
  }
}

void Pause::end() {
  if (stream_ == nullptr) return;
  if (is_strict()) {
    inner_symbol<void (*)(int)>("outboard_strict_hold")(0);
  } else {
    static const auto resume = inner_symbol<void (*)(ob_stream)>("outboard_sim_resume");
    resume(stream_->handle());
  }
  stream_ = nullptr;
}

Device& device() { return Runtime::initialize({OUTBOARD_TEST_DRIVER}).device(0); }

void fail(const char* function, uint64_t nth, ob_status status) {
  static const auto target = symbol<void (*)(const char*, uint64_t, int)>("outboard_faults_fail");
  target(function, nth, status);
}

uint64_t calls(const char* function) {
  static const auto target = symbol<uint64_t (*)(const char*)>("outboard_faults_calls");
  return target(function);
}

int64_t live(const char* kind) {
  static const auto target = symbol<int64_t (*)(const char*)>("outboard_faults_live");
  return target(kind);
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

void run(const Executable& executable, Stream& stream, std::initializer_list<const Holder*> vectors, int64_t count) {
  static constexpr int64_t kStep = 1;
  std::vector<Input> inputs;
  for (const Holder* vector : vectors) {
    inputs.emplace_back().tensor = {vector->get(), DType::kFloat32, 1, &count, &kStep, 0};
  }
  std::vector<Scalar> symbols;
  CHECK(executable.bind(inputs.data(), symbols));
  ExecutionContext context{stream};
  std::vector<Result> results;
  executable.run(inputs.data(), symbols, context, results);
}

Kernel& slow_kernel() {
  static const KernelUse slow = device().programs().kernel(
      "__kernel void slow(__global volatile float* x, long n) {"
      "  float s = x[0]; for (long i = 0; i < n; ++i) s = s * 0.5f + 1.0f;"  // a chain no compiler can shorten
      "  x[0] = s > 1e30f ? s : x[0] + 1.0f; }",
      "", "slow");
  return *slow;
}

void keep_busy(Stream& stream, ob_ptr x) {
  const int64_t steps = 20000000;
  Launch launch = launch_of(slow_kernel(), x);
  launch.arguments = Arguments(2);
  launch.arguments.set_pointer(0, x);
  launch.arguments.set(1, steps);
  stream.launch(launch);
}

Launch launch_of(Kernel& kernel, ob_ptr x, uint64_t items, uint64_t batch) {
  Launch launch;
  launch.kernel = &kernel;
  launch.global[0] = items;
  launch.batch = batch;
  launch.arguments = Arguments(1);
  launch.arguments.set_pointer(0, x);
  return launch;
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
