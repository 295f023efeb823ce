// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "cuda_fixture.h"

/// The CUDA driver on a simulator of the API (cuda/simulator.cpp): which calls it makes in which order, what it makes
/// of errors. It says nothing of GPUs.
namespace {

using namespace cuda_test;

constexpr int kOutOfMemory = 2, kIllegalAddress = 700;

/// Stops all streams of the simulator while it lives.
struct Hold {
  Hold() { simulated<void (*)(int)>("cuda_simulator_hold")(1); }
  ~Hold() { end(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  void end() { simulated<void (*)(int)>("cuda_simulator_hold")(0); }
};

struct Event {
  Event() { succeed(driver().event_create(device(), &handle)); }
  ~Event() { driver().event_destroy(handle); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream) const { succeed(driver().event_record(handle, stream.handle)); }

  ob_event handle = nullptr;
};

const char* const kSource =
    "extern \"C\" __global__ void add(int* x, long n) {\n"
    "  __shared__ int seen[64];\n"
    "  const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  seen[threadIdx.x % 64] = (int)threadIdx.x;\n"
    "  __syncthreads();\n"
    "  if (i < n) x[i] += 1;\n"
    "}\n";

struct Program {
  Program() { succeed(driver().program_build(device(), kSource, "", &handle)); }
  explicit Program(ob_program handle_) : handle(handle_) {}
  ~Program() {
    if (handle != nullptr) driver().program_release(handle);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ob_kernel kernel() const {
    ob_kernel found = nullptr;
    succeed(driver().kernel_get(handle, "add", &found));
    return found;
  }
  std::string binary() const {
    size_t bytes = 0;
    succeed(driver().program_binary(handle, nullptr, &bytes));
    std::string content(bytes, '\0');
    succeed(driver().program_binary(handle, content.data(), &bytes));
    return content;
  }

  ob_program handle = nullptr;
};

TEST(what_a_device_is) {
  uint32_t count = 0;
  succeed(driver().device_count(&count));
  CHECK_EQ(count, 2u);
  CHECK(device() == device());
  ob_device none = nullptr;
  CHECK_EQ(driver().device_open(2, &none), OB_INVALID_ARGUMENT);
  ob_device_properties p{};
  p.struct_size = sizeof(p);
  succeed(driver().device_properties(device(), &p));
  CHECK_EQ(std::string(p.dialect), "cuda");
  CHECK_EQ(p.type, OB_DEVICE_GPU);
  CHECK_EQ(p.sub_group_size, 32u);
  CHECK_EQ(p.local_memory, 49152u);
  CHECK_EQ(p.max_work_group_size, 1024u);
  // Compute capability 8.6 runs what was made for 8.0, the newest of its kind that this NVRTC knows.
  CHECK(std::strstr(p.cache_key, "|86|sm_80|12040|NVRTC 12.4|") != nullptr);
  CHECK_EQ(calls("cuDevicePrimaryCtxRetain"), 0);  // looking at devices takes none of their memory
}

TEST(memory_runs_out) {
  ob_ptr pointer = 0;
  CHECK_EQ(driver().memory_alloc(device(), uint64_t{5} << 30, &pointer), OB_OUT_OF_MEMORY);
  CHECK(says("CUDA_ERROR_OUT_OF_MEMORY"));
  uint64_t free = 0, less = 0, total = 0;
  succeed(driver().memory_info(device(), &free, &total));
  const Memory some(1 << 20);
  succeed(driver().memory_info(device(), &less, &total));
  CHECK_EQ(free - less, uint64_t{1} << 20);
}

TEST(copies) {
  std::vector<int> values(100000);
  std::iota(values.begin(), values.end(), 0);
  const Memory memory(values.size() * 4);
  const Stream stream;
  stream.upload(memory, values.data());
  CHECK(stream.download<int>(memory) == values);
  void* pinned = nullptr;
  succeed(driver().host_alloc(device(), memory.size, &pinned));
  std::memset(pinned, 7, memory.size);
  {
    Hold hold;  // page-locked memory is read when the stream comes to it
    stream.upload(memory, pinned);
    CHECK_EQ(driver().stream_wait(stream.handle, 0), OB_NOT_READY);
    std::memset(pinned, 9, 4);
    hold.end();
    stream.wait();
  }
  CHECK_EQ(stream.download<int>(memory)[0], 0x09090909);
  succeed(driver().host_free(device(), pinned));
}

TEST(fills) {
  const uint32_t words[] = {0x01020304, 0x01020304, 0x11121314, 0x21222324};
  const Stream stream;
  for (const uint64_t bytes : {16u, 4096u, 65552u, 1000000u}) {
    for (const uint32_t size : {1u, 2u, 4u, 8u, 16u}) {
      for (const uint32_t* pattern : {words, words + 2 - (size == 16 ? 2 : 0)}) {
        const Memory memory(bytes + 32);
        std::vector<char> expected(bytes + 32, 0x55);
        stream.upload(memory, expected.data());
        const uint64_t filled = bytes / size * size;
        for (uint64_t i = 0; i < filled; ++i) {
          expected[16 + i] = reinterpret_cast<const char*>(pattern)[i % size];
        }
        succeed(driver().fill(stream.handle, memory.pointer + 16, pattern, size, filled));
        CHECK(stream.download<char>(memory) == expected);
      }
    }
  }
  const Memory memory(16);
  CHECK_EQ(driver().fill(stream.handle, memory.pointer, words, 3, 12), OB_INVALID_ARGUMENT);
}

TEST(ranges_that_overlap) {
  const Stream stream;
  constexpr uint64_t kBytes = 5000;
  const Memory memory(2 * kBytes);
  for (const uint64_t apart : {0u, 1u, 7u, 80u, 100u, 2499u, 4999u, 5000u}) {
    for (const bool up : {false, true}) {
      std::vector<char> values(2 * kBytes);
      for (uint64_t i = 0; i < values.size(); ++i) values[i] = static_cast<char>(i * 31 + i / 256);
      stream.upload(memory, values.data());
      const uint64_t from = up ? 0 : apart, to = up ? apart : 0;
      succeed(driver().copy(stream.handle, OB_DEVICE_TO_DEVICE, memory.pointer + to, memory.pointer + from, kBytes));
      std::memmove(values.data() + to, values.data() + from, kBytes);
      CHECK(stream.download<char>(memory) == values);
    }
  }
}

TEST(streams_and_events) {
  const Stream first, second;
  const Event start, end;
  CHECK_EQ(driver().event_wait(start.handle, 0), OB_OK);  // never recorded
  succeed(driver().stream_wait_event(first.handle, start.handle));
  int64_t nanoseconds = -1;
  CHECK_EQ(driver().event_elapsed(start.handle, end.handle, &nanoseconds), OB_INVALID_ARGUMENT);
  {
    Hold hold;
    start.record(first);
    end.record(first);
    succeed(driver().stream_wait_event(second.handle, end.handle));
    CHECK_EQ(driver().event_wait(end.handle, 0), OB_NOT_READY);
    CHECK_EQ(driver().stream_wait(second.handle, 0), OB_NOT_READY);
    CHECK_EQ(driver().event_elapsed(start.handle, end.handle, &nanoseconds), OB_INVALID_ARGUMENT);
    CHECK(says("synchronize it first"));
  }
  succeed(driver().event_wait(end.handle, 1));
  second.wait();
  succeed(driver().event_elapsed(start.handle, end.handle, &nanoseconds));
  CHECK(nanoseconds >= 0);
}

TEST(programs) {
  const Program program;
  const Stream stream;
  std::vector<int> values(1000, 5);
  const Memory x(4000);
  stream.upload(x, values.data());
  succeed(stream.launch(program.kernel(), x, 999, {1024, 1, 1}, {128, 1, 1}));
  succeed(stream.launch(program.kernel(), x, 1, {1000, 1, 1}, {0, 0, 0}));  // 250 items are the most that divide it
  values = stream.download<int>(x);
  CHECK_EQ(values[0], 7);
  CHECK_EQ(values[998], 6);
  CHECK_EQ(values[999], 5);
  ob_kernel_properties needs{sizeof(ob_kernel_properties), 0, 0};
  succeed(driver().kernel_properties(program.kernel(), &needs));
  CHECK_EQ(needs.max_work_group_size, 1024u);
  CHECK_EQ(needs.local_memory, 256u);
  ob_kernel none = nullptr;
  CHECK_EQ(driver().kernel_get(program.handle, "subtract", &none), OB_INVALID_ARGUMENT);
}

TEST(binaries) {
  const Program program;
  const std::string binary = program.binary();
  ob_program again = nullptr;
  succeed(driver().program_load(device(), binary.data(), binary.size(), &again));
  const Program loaded(again);
  CHECK(loaded.binary() == binary);
  std::string other = binary;
  other.back() ^= 1;
  CHECK_EQ(driver().program_load(device(), other.data(), other.size(), &again), OB_INVALID_ARGUMENT);
  CHECK(says("damaged"));
  CHECK_EQ(driver().program_load(device(), binary.data(), binary.size() / 2, &again), OB_INVALID_ARGUMENT);
  CHECK_EQ(driver().program_load(device(), "\177ELF", 4, &again), OB_INVALID_ARGUMENT);
}

TEST(what_cannot_be_built) {
  ob_program none = nullptr;
  CHECK_EQ(driver().program_build(device(), "extern \"C\" __global__ void k() { nothing(); }", "", &none),
           OB_BUILD_FAILED);
  CHECK(says("nothing"));
  CHECK_EQ(driver().program_build(device(), kSource, "-cl-std=CL3.0", &none), OB_BUILD_FAILED);
  CHECK(says("-cl-std=CL3.0"));
}

TEST(launches_that_are_refused) {
  const Program program;
  const Stream stream;
  const Memory x(4000);
  const ob_kernel kernel = program.kernel();
  const int launched = calls("cuLaunchKernel");
  CHECK_EQ(stream.launch(kernel, x, 1, {1, 65536, 1}, {1, 1, 1}), OB_INVALID_ARGUMENT);
  CHECK(says("65536 work-groups, and CUDA has 65535 at most"));
  CHECK_EQ(stream.launch(kernel, x, 1, {uint64_t{1} << 31, 1, 1}, {1, 1, 1}), OB_INVALID_ARGUMENT);
  CHECK_EQ(stream.launch(kernel, x, 1, {1, 1, 128}, {1, 1, 128}), OB_INVALID_ARGUMENT);
  CHECK_EQ(stream.launch(kernel, x, 1, {2048, 1, 1}, {2048, 1, 1}), OB_INVALID_ARGUMENT);
  CHECK_EQ(stream.launch(kernel, x, 1, {64, 64, 1}, {64, 64, 1}), OB_INVALID_ARGUMENT);
  CHECK_EQ(stream.launch(kernel, x, 1, {100, 1, 1}, {64, 1, 1}), OB_INVALID_ARGUMENT);
  const int32_t narrow = 1;
  const ob_argument arguments[] = {{1, 8, &x.pointer}, {0, 4, &narrow}};
  const uint64_t global[3] = {1, 1, 1};
  const uint32_t local[3] = {1, 1, 1};
  CHECK_EQ(driver().launch(stream.handle, kernel, global, local, arguments, 2), OB_INVALID_ARGUMENT);
  CHECK(says("argument 1 has 8 bytes, not 4"));
  CHECK_EQ(driver().launch(stream.handle, kernel, global, local, arguments, 1), OB_INVALID_ARGUMENT);
  CHECK_EQ(stream.launch(kernel, x, 1, {0, 1, 1}, {1, 1, 1}), OB_OK);  // nothing to do
  CHECK_EQ(calls("cuLaunchKernel"), launched);
}

TEST(graphs) {
  const Program program;
  const Stream stream, other;
  std::vector<int> values(10, 0);
  const Memory x(40);
  stream.upload(x, values.data());
  stream.wait();
  const ob_kernel kernel = program.kernel();
  succeed(driver().capture_begin(stream.handle));
  succeed(stream.launch(kernel, x, 10, {64, 1, 1}, {64, 1, 1}));
  succeed(stream.launch(kernel, x, 5, {64, 1, 1}, {64, 1, 1}));
  void* graph = nullptr;
  std::thread([&] { succeed(driver().capture_end(stream.handle, &graph)); }).join();
  CHECK_EQ(stream.download<int>(x)[0], 0);  // recorded, not run
  {
    const Hold hold;
    succeed(driver().graph_launch(other.handle, graph));
    succeed(driver().graph_launch(other.handle, graph));
  }
  values = other.download<int>(x);
  CHECK_EQ(values[0], 4);
  CHECK_EQ(values[9], 2);
  succeed(driver().graph_destroy(graph));
  CHECK_EQ(live("graph"), 0);  // what was captured is not kept beside what can be launched
  CHECK_EQ(live("executable"), 0);
}

TEST(a_capture_that_went_wrong) {
  const Stream stream;
  const Memory x(16);
  succeed(driver().capture_begin(stream.handle));
  const uint32_t zero = 0;
  CHECK(driver().fill(stream.handle, x.pointer, &zero, 4, 16) != OB_OK);  // the contract has launches alone recorded
  void* graph = nullptr;
  CHECK(driver().capture_end(stream.handle, &graph) != OB_OK);
  CHECK(graph == nullptr);
  succeed(driver().graph_destroy(graph));
  succeed(driver().fill(stream.handle, x.pointer, &zero, 4, 16));
  CHECK_EQ(stream.download<int>(x)[3], 0);
}

TEST(a_program_in_use_is_waited_for) {
  Program program;
  const Memory x(256);
  auto* const stream = new Stream;
  const std::vector<int> zeros(64, 0);
  stream->upload(x, zeros.data());
  stream->wait();
  Hold hold;
  succeed(stream->launch(program.kernel(), x, 64, {64, 1, 1}, {64, 1, 1}));
  const int streams = live("stream"), modules = live("module");
  delete stream;
  CHECK_EQ(live("stream"), streams);  // it has work left to do
  std::thread release([&] { driver().program_release(std::exchange(program.handle, nullptr)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK_EQ(live("module"), modules);
  hold.end();
  release.join();
  CHECK_EQ(live("module"), modules - 1);
  CHECK_EQ(live("stream"), streams - 1);
  CHECK_EQ(Stream().download<int>(x)[63], 1);
}

TEST(threads_and_the_context_of_others) {
  const auto set_current = simulated<int (*)(void*)>("cuCtxSetCurrent");
  const auto get_current = simulated<int (*)(void**)>("cuCtxGetCurrent");
  const auto retain = simulated<int (*)(void**, int)>("cuDevicePrimaryCtxRetain");
  std::thread([] { const Memory memory(100); }).join();  // a thread without a context
  void *theirs = nullptr, *current = nullptr;
  CHECK_EQ(retain(&theirs, 1), 0);
  set_current(theirs);
  const Memory memory(100);  // of device 0
  get_current(&current);
  CHECK(current == theirs);
  set_current(nullptr);
}

TEST(peers) {
  const Memory here(400), there(400, device(1));
  const Stream stream, other(device(1));
  std::vector<int> values(100);
  std::iota(values.begin(), values.end(), 3);
  stream.upload(here, values.data());
  succeed(driver().copy_peer(stream.handle, device(1), there.pointer, device(0), here.pointer, 400));
  stream.wait();
  CHECK(other.download<int>(there) == values);
}

TEST(one_call_that_fails) {
  const Stream stream;
  ob_ptr pointer = 0;
  fail_next("cuMemAlloc", kOutOfMemory);
  CHECK_EQ(driver().memory_alloc(device(), 100, &pointer), OB_OUT_OF_MEMORY);
  const Memory memory(100);
  ob_program none = nullptr;
  fail_next("cuModuleLoadData", 200);
  CHECK_EQ(driver().program_build(device(), kSource, "", &none), OB_BUILD_FAILED);
  CHECK(says("cuModuleLoadData"));
}

TEST(sensors_are_those_of_the_management_library) {
  for (uint32_t index : {0u, 1u}) {
    ob_sensors read{sizeof(read), OB_NOT_KNOWN, OB_NOT_KNOWN, OB_NOT_KNOWN, OB_NOT_KNOWN, OB_NOT_KNOWN, OB_NOT_KNOWN};
    succeed(driver().device_sensors(device(index), &read));
    CHECK_EQ(read.memory_used, 12345);
    CHECK_EQ(read.compute_busy, 70);
    CHECK_EQ(read.memory_busy, 30);
    CHECK_EQ(read.temperature, 41);
    CHECK_EQ(read.power, index == 0 ? 155000 : OB_NOT_KNOWN);
    CHECK_EQ(read.clock, 1410);
  }
}

/// The last: nothing brings the device back.
TEST(zz_a_lost_device) {
  auto* const program = new Program;
  auto* const stream = new Stream;
  auto* const event = new Event;
  auto* const memory = new Memory(4000);
  const ob_kernel kernel = program->kernel();
  simulated<void (*)(int, int)>("cuda_simulator_lose")(0, kIllegalAddress);
  CHECK_EQ(driver().stream_wait(stream->handle, 1), OB_DEVICE_LOST);
  CHECK(says("cuStreamSynchronize returned CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access"));
  const int made = calls("cuMemAlloc") + calls("cuStreamSynchronize") + calls("cuLaunchKernel");
  ob_ptr pointer = 0;
  uint64_t free = 0, total = 0;
  ob_device_properties properties{};
  properties.struct_size = sizeof(properties);
  CHECK_EQ(driver().memory_alloc(device(), 100, &pointer), OB_DEVICE_LOST);
  CHECK(says("CUDA_ERROR_ILLEGAL_ADDRESS"));
  CHECK_EQ(driver().memory_info(device(), &free, &total), OB_DEVICE_LOST);
  CHECK_EQ(driver().device_properties(device(), &properties), OB_DEVICE_LOST);
  CHECK_EQ(driver().stream_wait(stream->handle, 1), OB_DEVICE_LOST);
  CHECK_EQ(driver().stream_wait(stream->handle, 0), OB_DEVICE_LOST);
  CHECK_EQ(driver().event_record(event->handle, stream->handle), OB_DEVICE_LOST);
  CHECK_EQ(driver().event_wait(event->handle, 1), OB_DEVICE_LOST);
  CHECK_EQ(driver().capture_begin(stream->handle), OB_DEVICE_LOST);
  CHECK_EQ(stream->launch(kernel, *memory, 1, {1, 1, 1}, {1, 1, 1}), OB_DEVICE_LOST);
  ob_program none = nullptr;
  CHECK_EQ(driver().program_build(device(), kSource, "", &none), OB_DEVICE_LOST);
  CHECK_EQ(calls("cuMemAlloc") + calls("cuStreamSynchronize") + calls("cuLaunchKernel"), made);
  CHECK_EQ(driver().event_destroy(event->handle), OB_OK);
  CHECK_EQ(driver().stream_destroy(stream->handle), OB_OK);
  CHECK_EQ(driver().program_release(program->handle), OB_OK);
  const Memory elsewhere(100, device(1));
  const Stream fine(device(1));
  fine.wait();
}

/// Nothing to drive, in a process of its own: OB_OK with 0, and a text that says what to do.
int no_devices(const char* variable, const char* value, const char* advice) {
  setenv(variable, value, 1);
  uint32_t count = 7;
  const bool right = driver().device_count(&count) == OB_OK && count == 0 && says(advice);
  std::printf("%s\n", driver().last_error());
  return right ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  const std::string scenario = count > 1 ? words[1] : "";
  if (scenario == "no_library") return no_devices("OUTBOARD_CUDA_LIBRARY", "/no/such/libcuda.so.1", "NVIDIA driver");
  if (scenario == "no_compiler") return no_devices("OUTBOARD_CUDA_NVRTC", "/no/such/nvrtc", "nvidia-cuda-nvrtc");
  if (scenario == "no_device") return no_devices("CUDA_SIMULATOR_DEVICES", "0", "CUDA_VISIBLE_DEVICES");
  if (scenario == "other_library") return no_devices("OUTBOARD_CUDA_LIBRARY", "libm.so.6", "CUDA 11.4");
  return check::run_all();
}
