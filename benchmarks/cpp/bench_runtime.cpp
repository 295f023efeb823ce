// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "plan_writer.h"
#include "runtime/base/error.h"
#include "runtime/device.h"
#include "runtime/memory/allocation.h"
#include "runtime/plans/executor.h"

#ifdef OUTBOARD_BENCH_C10
#include <c10/core/CPUAllocator.h>
#endif

/// Nanoseconds per call of the runtime's hot paths, the best of several rounds. One argument: a driver's path.
using namespace outboard;

namespace {

void measure(
    const char* name, int calls, const std::function<void()>& call, const std::function<void()>& after_round = [] {}) {
  constexpr int kRounds = 25;  // short ones: other processes disturb some of them
  double best = 1e18;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    const auto end = std::chrono::steady_clock::now();
    after_round();
    best = std::min(best, std::chrono::duration<double, std::nano>(end - start).count() / calls);
  }
  std::printf("%-44s %9.1f ns\n", name, best);
}

void bench_memory(Device& device) {
  CachingAllocator& allocator = device.allocator();
  Stream& stream = device.default_stream();
  for (const uint64_t bytes : {64u, 4096u, 1u << 20, 8u << 20}) {
    const std::string name = "allocate and free " + std::to_string(bytes) + " bytes";
    measure(name.c_str(), 10000, [&] { allocator.free(device.residency().allocate(bytes, stream)); });
    const std::string yardstick = "  malloc and free " + std::to_string(bytes) + " bytes";
    measure(yardstick.c_str(), 10000, [&] {
      void* volatile memory = std::malloc(bytes);  // volatile: or the compiler leaves the pair out
      std::free(memory);
    });
#ifdef OUTBOARD_BENCH_C10
    const std::string torch = "  PyTorch's CPU allocator " + std::to_string(bytes) + " bytes";
    measure(torch.c_str(), 10000, [&] { c10::GetCPUAllocator()->allocate(bytes); });
#endif
  }
  measure("Allocation: create, resolve, release", 10000, [&] {
    Allocation* allocation = Allocation::create(device, 4096);
    Work(stream).resolve(*allocation);
    allocation->release();
  });
  Allocation* allocation = Allocation::create(device, 4096);
  Work(stream).resolve(*allocation);
  const auto* inside = static_cast<const char*>(allocation->address()) + 100;
  measure("Allocation: resolve", 50000, [&] { Work(stream).resolve(*allocation); });
  measure("Allocation: find", 50000, [&] { Allocation::find(inside); });
  measure("current stream", 50000, [&] { Runtime::get().current_stream(device.index()); });
  allocation->release();
}

void bench_plan(Device& device) {
  Stream& stream = device.default_stream();
  const std::string bytes = scale_plan();
  const Executable executable(Plan::parse(bytes.data(), bytes.size()), device);
  Allocation* x = Allocation::create(device, 64);
  const uint64_t zero = 0;
  stream.fill(Pin(*x, stream).pointer(), &zero, sizeof(zero), 64);
  const int64_t size = 16, stride = 1;
  Input inputs[2];
  inputs[0].tensor = {x, DType::kFloat32, 1, &size, &stride, 0};
  inputs[1].scalar.d = 2.0;
  std::vector<Scalar> symbols;
  measure("bind symbols", 50000, [&] { executable.bind(inputs, symbols); });
  ExecutionContext context{stream, {}};
  std::vector<Result> results;
  const auto run = [&] {
    executable.run(inputs, symbols, context, results);
    results.at(0).allocation->release();
  };
  measure("plan of one kernel, submitted", 500, run, [&] { stream.synchronize(); });
  measure("plan of one kernel, finished", 500, [&] {
    run();
    stream.synchronize();
  });

  const std::string source = "__kernel void nothing(__global float* x) { (void)x; }";
  const KernelUse kernel = device.programs().kernel(source, "", "nothing");
  Launch launch{&*kernel, {16, 1, 1}, {16, 1, 1}, 0, Arguments(1)};
  launch.arguments.set_pointer(0, Pin(*x, stream).pointer());
  measure("launch of an empty kernel, submitted", 500, [&] { stream.launch(launch); }, [&] { stream.synchronize(); });
  x->release();
}

void bench_events(Device& device) {
  Stream& stream = device.default_stream();
  Event event(device);
  measure("event: record", 500, [&] { event.record(stream); }, [&] { stream.synchronize(); });
  measure("stream: synchronize when idle", 50000, [&] { stream.synchronize(); });
}

}  // namespace

int main(int count, char** arguments) {
  try {
    Device& device = Runtime::initialize({count > 1 ? arguments[1] : OUTBOARD_BENCH_DRIVER}).device(0);
    std::printf("%s (%s)\n", device.properties().name, device.driver().name);
    bench_memory(device);
    if (device.properties().dialect[0] != '\0') bench_plan(device);
    bench_events(device);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
