// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "runtime/base/error.h"

/// How drivers are loaded and chosen. Each scenario is a process of its own, because drivers are loaded once.
using namespace outboard;

namespace {

int scenario(const char* name) { return fixture::run_again(name); }

Runtime& load(const char* path) { return Runtime::initialize({path}); }

/// True if using device 0 fails with an error whose text contains `advice`.
bool refused_with(const char* advice) {
  try {
    Runtime::get().device(0);
  } catch (const Error& error) {
    return std::strstr(error.what(), advice) != nullptr;
  }
  return false;
}

int no_such_library() {
  load("/no/such/driver.so");
  return Runtime::get().device_count() == 0 && refused_with("/no/such/driver.so") ? 0 : 1;
}

int not_a_driver() {
  load("libm.so.6");
  return refused_with("not an Outboard driver") ? 0 : 1;
}

int no_opencl_loader() {
  setenv("OUTBOARD_OPENCL_LIBRARY", "/no/such/libOpenCL.so", 1);
  load(OUTBOARD_OPENCL);
  return refused_with("pocl-opencl-icd") ? 0 : 1;
}

int no_opencl_platform() {
  setenv("OCL_ICD_VENDORS", "/no/such/folder", 1);
  load(OUTBOARD_OPENCL);
  return refused_with("OCL_ICD_VENDORS") ? 0 : 1;
}

int no_host_compiler() {
  setenv("OUTBOARD_HOST_COMPILER", "/no/such/clang", 1);
  load(OUTBOARD_HOST);
  return refused_with("pip install ziglang") ? 0 : 1;
}

/// A program that is there and is no compiler.
int wrong_host_compiler() {
  setenv("OUTBOARD_HOST_COMPILER", "/bin/false", 1);
  load(OUTBOARD_HOST);
  return refused_with("/bin/false") ? 0 : 1;
}

int bad_sub_group() {
  setenv("OUTBOARD_HOST_SUB_GROUP", "12", 1);
  load(OUTBOARD_HOST);
  return refused_with("OUTBOARD_HOST_SUB_GROUP") ? 0 : 1;
}

int bad_device_number() {
  setenv("OUTBOARD_NUM_DEVICES", "many", 1);
  load(OUTBOARD_OPENCL);
  return refused_with("OUTBOARD_NUM_DEVICES") ? 0 : 1;
}

int bad_memory_limit() {
  for (const char* text : {"lots", "-1", "0", "12 parsecs", "nan", "1e300", "12MiBs"}) {
    setenv("OUTBOARD_MEMORY_LIMIT", text, 1);
    const ob_driver* driver = nullptr;
    const auto entry = reinterpret_cast<ob_driver_entry>(dlsym(dlopen(OUTBOARD_SIM, RTLD_NOW), OB_DRIVER_ENTRY_NAME));
    driver = entry();
    ob_device handle = nullptr;
    driver->device_open(0, &handle);
    try {
      Device device(driver, handle, 0);
      return 1;
    } catch (const Error& error) {
      if (std::strstr(error.what(), text) == nullptr) return 2;
    }
  }
  return 0;
}

int memory_limit() {
  setenv("OUTBOARD_MEMORY_LIMIT", "0.5GiB", 1);
  Device& device = load(OUTBOARD_SIM).device(0);
  if (device.allocator().limit() != 512u << 20) return 1;
  Block* block = device.residency().allocate(512u << 20, device.default_stream());
  if (device.memory_info().first != 0) return 2;
  try {
    device.residency().allocate(1, device.default_stream());
    return 3;
  } catch (const OutOfMemoryError&) {
  }
  device.allocator().free(block);
  return 0;
}

/// Two devices, each with its own memory and queues, and a copy by way of the host.
int two_devices(const char* driver) {
  setenv("OUTBOARD_NUM_DEVICES", "2", 1);
  Runtime& runtime = load(driver);
  if (runtime.device_count() < 2) return 1;
  float host = 7;
  for (int index = 0; index < 2; ++index) {
    runtime.set_current_device(index);
    Stream& stream = runtime.current_stream(index);
    if (stream.device().index() != index) return 2;
    Allocation* x = Allocation::create(runtime.device(index), 4);
    stream.copy(OB_HOST_TO_DEVICE, Pin(*x, stream).pointer(), reinterpret_cast<uint64_t>(&host), 4);
    stream.synchronize();
    host = 0;
    stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(&host), Pin(*x, stream).pointer(), 4);
    stream.synchronize();
    if (host != 7) return 3;
    if (runtime.device(index).allocator().statistics().allocated.current != 4) return 4;
    x->release();
  }
  Event event(runtime.device(0));  // an event orders streams of different devices too
  event.record(runtime.device(0).default_stream());
  runtime.device(1).default_stream().wait(event);
  runtime.device(1).synchronize();
  return 0;
}

/// More devices than anybody planned for: each has tensors of its own, found by address, and reuses its own addresses.
int many_devices() {
  setenv("OUTBOARD_NUM_DEVICES", "16", 1);
  Runtime& runtime = Runtime::initialize(std::vector<std::string>(13, OUTBOARD_SIM));
  if (runtime.device_count() != 208) return 1;
  std::vector<fixture::Holder> all;
  for (int index = 0; index < runtime.device_count(); ++index) {
    const void* const first = fixture::Holder(Allocation::create(runtime.device(index), 4))->address();
    all.emplace_back(Allocation::create(runtime.device(index), 4));
    if (all.back()->address() != first) return 2;
  }
  for (const fixture::Holder& each : all) {
    if (Allocation::find(each->address()) != each.get()) return 3;
  }
  return 0;
}

int simulated_device() {
  Device& device = load(OUTBOARD_SIM).device(0);
  Stream& stream = device.default_stream();
  if (device.host_accessible() || device.properties().dialect[0] != '\0') return 1;
  Allocation* x = Allocation::create(device, 64);
  const ob_ptr memory = Pin(*x, stream).pointer();
  const uint32_t pattern = 0x01020304;
  stream.fill(memory, &pattern, 4, 64);
  uint32_t host[16] = {};
  stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(host), memory, 64);
  stream.synchronize();
  if (host[15] != pattern) return 2;
  try {
    stream.fill(memory, &pattern, 4, uint64_t{1} << 40);
    return 3;
  } catch (const Error& error) {
    if (error.status() != OB_INVALID_ARGUMENT) return 4;
  }
  try {
    device.programs().kernel("", "", "k")->get();
    return 5;
  } catch (const Error& error) {
    if (error.status() != OB_UNSUPPORTED) return 6;
  }
  Event start(device), end(device);
  start.record(stream);
  end.record(stream);
  stream.synchronize();
  if (start.elapsed_ms(end) < 0) return 7;
  x->release();
  return 0;
}

int faults_without_a_driver() {
  unsetenv("OUTBOARD_FAULTS_DRIVER");
  load(OUTBOARD_TEST_DRIVER);
  return refused_with("could not start") ? 0 : 1;
}

int failing_count() {
  fixture::fail("device_count", 1, OB_DEVICE_LOST);
  load(OUTBOARD_TEST_DRIVER);
  return refused_with("injected failure of device_count") ? 0 : 1;
}

int failing_open() {
  fixture::fail("device_open", 1, OB_DEVICE_LOST);
  load(OUTBOARD_TEST_DRIVER);
  return refused_with("injected failure of device_open") ? 0 : 1;
}

struct Scenario {
  const char* name;
  int (*run)();
};

const Scenario kScenarios[] = {{"no_such_library", no_such_library},
                               {"not_a_driver", not_a_driver},
                               {"no_opencl_loader", no_opencl_loader},
                               {"no_opencl_platform", no_opencl_platform},
                               {"no_host_compiler", no_host_compiler},
                               {"wrong_host_compiler", wrong_host_compiler},
                               {"bad_sub_group", bad_sub_group},
                               {"bad_device_number", bad_device_number},
                               {"bad_memory_limit", bad_memory_limit},
                               {"memory_limit", memory_limit},
                               {"two_opencl_devices", [] { return two_devices(OUTBOARD_OPENCL); }},
                               {"two_host_devices", [] { return two_devices(OUTBOARD_HOST); }},
                               {"two_simulated_devices", [] { return two_devices(OUTBOARD_SIM); }},
                               {"many_devices", many_devices},
                               {"simulated_device", simulated_device},
                               {"faults_without_a_driver", faults_without_a_driver},
                               {"failing_count", failing_count},
                               {"failing_open", failing_open}};

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) {
    for (const Scenario& each : kScenarios) {
      if (each.name == std::string(arguments[1])) return each.run();
    }
    return 126;
  }
  for (const Scenario& each : kScenarios) {
    const char* name = each.name;
    check::Register(name, [name] { CHECK_EQ(scenario(name), 0); });
  }
  return check::run_all();
}
